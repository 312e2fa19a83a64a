"""Uses of a private covariance: functions of a `Release` alone, at no further privacy cost."""
