from .moments import BatchMoments as BatchMoments
from .moments import PooledStatistics as PooledStatistics
from .recipe import batch_statistics as batch_statistics
