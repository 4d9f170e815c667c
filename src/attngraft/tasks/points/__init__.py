"""Classification and part segmentation of point clouds."""
