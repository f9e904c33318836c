// The interpreter for hosts that do not predict indirect branches.
#define INTERPRET interpret_tree
#include "interpret_loop.h"
