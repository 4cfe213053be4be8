"""Training that other processes stop, resume, save and look at."""
