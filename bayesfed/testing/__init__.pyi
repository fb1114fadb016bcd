from .clients import check_local as check_local
from .clients import check_sampler as check_sampler
from .clients import check_view as check_view
from .codecs import check_codec as check_codec
from .law import LawError as LawError
