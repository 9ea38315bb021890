// SPDX-License-Identifier: MIT
#include "laws/laws.hpp"

using the_fixture = laws::fixture<float, Eigen::ColMajor>;
OTIMES_LAWS(the_fixture);
