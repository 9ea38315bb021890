// SPDX-License-Identifier: MIT
#include "laws/laws.hpp"

using the_fixture = laws::fixture<float, Eigen::RowMajor>;
OTIMES_LAWS(the_fixture);
