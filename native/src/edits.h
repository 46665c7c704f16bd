// Edits of logits by penalties and biases.
#pragma once

#include "model.h"

// logits [count, vocabulary] of table rows [count], path [count, width] drafted ids above and at each node, -1 elsewhere,
// or null -> out [count, vocabulary], which may be the logits. Rows without an edit slot keep theirs.
extern "C" void edited(float* out, const float* logits, const int64_t* rows, const int64_t* path, long count,
                       long vocabulary, long width, const aerie::Tables* tables);
