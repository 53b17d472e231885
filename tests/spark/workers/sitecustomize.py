"""Makes Spark's Python workers, which find this file through PYTHONPATH, import the installed PySpark.

Spark tells them to import it from a zip file, which cannot contain compiled modules and takes twice as long.
"""

import sys

sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]
