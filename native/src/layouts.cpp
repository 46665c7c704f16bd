// How the compiler lays out what Python passes: native/layouts.py compares it with its own layout when a worker is
// built.
#include <cstddef>
#include <cstring>

#include "head.h"
#include "plans.h"

using namespace aerie;

namespace {

struct Layout {
  const char* name;
  int64_t words[20];  // the size, then the offset of each field; -1 ends them
};

const Layout kLayouts[] = {
    {"Norm", {sizeof(Norm), offsetof(Norm, gain), offsetof(Norm, floor), -1}},
    {"Matrix", {sizeof(Matrix), offsetof(Matrix, panels), offsetof(Matrix, scales), offsetof(Matrix, bias),
     offsetof(Matrix, outputs), offsetof(Matrix, inputs), offsetof(Matrix, multiplier), -1}},
    {"Layer", {sizeof(Layer), offsetof(Layer, embedding), offsetof(Layer, input), offsetof(Layer, query),
     offsetof(Layer, key), offsetof(Layer, post), offsetof(Layer, qkv), offsetof(Layer, output),
     offsetof(Layer, gate_up), offsetof(Layer, down), -1}},
    {"Model", {sizeof(Model), offsetof(Model, layers), offsetof(Model, rotations), offsetof(Model, embeddings),
     offsetof(Model, pool), offsetof(Model, norm), offsetof(Model, output), offsetof(Model, count),
     offsetof(Model, hidden), offsetof(Model, heads), offsetof(Model, kv_heads), offsetof(Model, dim),
     offsetof(Model, page_size), offsetof(Model, layer_bytes), offsetof(Model, normed_residual),
     offsetof(Model, halves), -1}},
    {"Tables", {sizeof(Tables), offsetof(Tables, pages), offsetof(Tables, noise_keys), offsetof(Tables, sampling),
     offsetof(Tables, limits), offsetof(Tables, min_lengths), offsetof(Tables, stop_ids),
     offsetof(Tables, edit_slots), offsetof(Tables, counts), offsetof(Tables, biases), offsetof(Tables, per_row),
     offsetof(Tables, stops), offsetof(Tables, no_slot), -1}},
    {"Futures", {sizeof(Futures), offsetof(Futures, tokens), offsetof(Futures, lengths), offsetof(Futures, done),
     offsetof(Futures, seeds), offsetof(Futures, per_generation), offsetof(Futures, seed_bytes), -1}},
    {"Step", {sizeof(Step), offsetof(Step, target), offsetof(Step, tables), offsetof(Step, futures),
     offsetof(Step, hold), offsetof(Step, board), offsetof(Step, rows), offsetof(Step, generations),
     offsetof(Step, count), offsetof(Step, open), offsetof(Step, stop), offsetof(Step, full), offsetof(Step, greedy_below),
     offsetof(Step, samples), offsetof(Step, filters), offsetof(Step, bans), offsetof(Step, edits), -1}},
    {"Board", {sizeof(Board), offsetof(Board, among), offsetof(Board, masks), offsetof(Board, words), -1}},
    {"Prompts", {sizeof(Prompts), offsetof(Prompts, tokens), offsetof(Prompts, starts), offsetof(Prompts, counts),
     offsetof(Prompts, next), offsetof(Prompts, last), offsetof(Prompts, tapped), offsetof(Prompts, boundaries),
     -1}},
    {"Drafts", {sizeof(Drafts), offsetof(Drafts, head), offsetof(Drafts, heats), offsetof(Drafts, tapped),
     offsetof(Drafts, forced), offsetof(Drafts, nodes), offsetof(Drafts, extends), offsetof(Drafts, boundaries),
     offsetof(Drafts, depth), offsetof(Drafts, topk), offsetof(Drafts, floor), -1}},
    {"Tails", {sizeof(Tails), offsetof(Tails, taps), offsetof(Tails, tokens), offsetof(Tails, tapped),
     offsetof(Tails, resting), offsetof(Tails, size), offsetof(Tails, wide), offsetof(Tails, boundaries), -1}},
    {"Head", {sizeof(Head), offsetof(Head, body), offsetof(Head, mapping), offsetof(Head, fuse),
     offsetof(Head, pre_norms), offsetof(Head, parts), offsetof(Head, norm_output), -1}},
};

}  // namespace

// The size and the offsets of a structure, ended by -1; null for an unknown name.
extern "C" const int64_t* layout(const char* name) {
  for (const Layout& one : kLayouts)
    if (std::strcmp(one.name, name) == 0) return one.words;
  return nullptr;
}

// Type and name of each member of Columns, in its order.
extern "C" const char* columns() {
#define LINE(type, name) #type " " #name "\n"
  return SAMPLING_COLUMNS(LINE);
#undef LINE
}
