"""What a model is asked beside clean accuracy: attacks, missing parts, corruptions, boundaries. Plain functions of tensors.

| file | |
|---|---|
| attacks.py | FGSM and PGD on pixels |
| missing.py | a hidden center, dropped patches |
| corruptions.py | noise, blur and others in five severities |
| boundaries.py | pixels of label maps at boundaries |
"""
