"""What attention does: maps recorded from any host, measures of them, and where they stand on the image.

| file | |
|---|---|
| record.py | listens to a model while it runs |
| recording.py | what was heard, by site and name |
| reductions.py | what is kept of maps where the maps themselves are too many |
| measures.py | entropy, distance, steepness |
| similarity.py | CKA between the layers of two models |
| rollout.py | attention through all layers |
| symmetry.py | whether latents and tokens look at each other |
| class_token.py | where the class token looks, layer by layer |
| importance.py | what BiSA's inverse branch attends to |
| structure.py | feature maps as pictures, structural similarity, sharpness |
| receptive_field.py | which pixels move what a model says of one place |
| distribution.py | head weights and gates over a data set |
| exploring.py | where every place of an image looks, small enough for a page |
| sides.py | which images two models judge differently |
| on_map.py | windows and sequences, put back onto the map |
"""
