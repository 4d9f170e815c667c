"""What a model is asked beside clean accuracy: attacks, missing parts, corruptions, boundaries. Plain functions of tensors;
`suites` puts trained runs under them.

| file | |
|---|---|
| attacks.py | FGSM and PGD on pixels |
| missing.py | a hidden center, dropped patches |
| corruptions.py | noise, blur and others in five severities |
| boundaries.py | pixels of label maps at boundaries |
| suites/ | named lists of such conditions, and of test sets, under which a run is evaluated |
"""
