"""For Spark's Python workers, which find this file through PYTHONPATH: Spark tells them to import PySpark from a zip
file, which has no compiled modules. It is installed beside them, too, and is there in half the time."""

import sys

sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]
