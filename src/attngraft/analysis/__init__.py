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
| on_map.py | windows and sequences, put back onto the map |
"""
