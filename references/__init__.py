"""What each kernel must compute: one file per kernel, sharing no arithmetic with it."""
