"""What a run is measured by: the recorder, the definitions and the results."""
