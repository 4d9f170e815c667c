"""Open whatever can be judged: a run, an exported folder, a host name; and the images to judge it on."""
