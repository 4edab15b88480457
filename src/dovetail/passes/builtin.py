"""The passes every compilation runs, in order."""

from dovetail.passes.base import Pass, Passes
from dovetail.passes.constants import fold_constants
from dovetail.passes.conv_bn import fold_conv_bn
from dovetail.passes.cse import eliminate_common_subexpressions
from dovetail.passes.dce import eliminate_dead_code
from dovetail.passes.noops import remove_noops
from dovetail.passes.views import normalize_views

NOOPS = Pass("noops", remove_noops)
VIEWS = Pass("views", normalize_views)
CONV_BN = Pass("conv_bn", fold_conv_bn)
CONSTANTS = Pass("constants", fold_constants)
CSE = Pass("cse", eliminate_common_subexpressions)
DCE = Pass("dce", eliminate_dead_code)

BUILTIN = Passes(
    joint=(NOOPS, CSE, DCE),
    post_grad=(NOOPS, VIEWS, CONV_BN, CSE, CONSTANTS, DCE),
)
