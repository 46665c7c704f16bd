// A drafting step, in one call for each of its phases: draft, verify, accept and extend, on the rows that are still
// open. The reference in torch is spec/round/step.py; the equations of the head are in spec/heads/head.py.
#include <algorithm>

#include "head.h"
#include "step.h"
#include "vectors.h"

using namespace aerie;

namespace {

// What the phases of one step leave for each other.
struct Round {
  Standing rows;
  long width, steps;                                    // nodes of the widest row, and of the longest path
  std::vector<long> drafting;                           // the rows that draft, in order
  std::vector<int64_t> nodes, firsts;                   // [rows] counts, and where they begin in the pass
  std::vector<int64_t> tokens, depths, parents, words;  // [rows, width]; words for trees only
  std::vector<int64_t> choices;                         // [rows, width], the target's
  std::vector<int64_t> path, along;                     // [rows, steps] from the root, and the choice after each
  std::vector<float> taps, normed_stream, logits;
};

thread_local Round round_;  // of the current step

long candidates(long topk, long depth) { return topk == 1 ? 1 + depth : 1 + topk + (depth - 1) * topk * topk; }

// `roots` are those of the rows that draft; in the others the root stands for every node, and is the only one.
void draft_chains(Round& round, const Step& step, const Drafts& drafts, const Roots& roots, long depth) {
  const long count = round.rows.count();
  std::vector<int64_t> drafted(roots.rows.count * (depth + 1)), levels(roots.rows.count), most, forced;
  for (const long row : round.drafting) {
    most.push_back(std::min<int64_t>(round.nodes[row] - 1, depth));
    if (drafts.forced) {
      const int64_t* own = drafts.forced + round.rows.places[row] * drafts.depth;
      forced.insert(forced.end(), own, own + depth);
    }
  }
  if (depth)
    drafted_chain(drafted.data(), levels.data(), most.data(), drafts.head, step.tables, &roots,
                  drafts.forced ? forced.data() : nullptr, depth, drafts.floor);
  for (size_t own = 0; own < round.drafting.size(); ++own) round.nodes[round.drafting[own]] = 1 + levels[own];
  round.width = *std::max_element(round.nodes.begin(), round.nodes.end());
  for (long row = 0, own = 0; row < count; ++row) {
    const bool drafts_here = own < roots.rows.count && round.drafting[own] == row;
    for (long node = 0; node < round.width; ++node) {
      round.tokens.push_back(node && drafts_here ? drafted[own * (depth + 1) + node] : round.rows.roots[row]);
      round.depths.push_back(node);
      round.parents.push_back(std::max(node - 1, 0L));
    }
    own += drafts_here;
  }
}

void draft_trees(Round& round, const Step& step, const Drafts& drafts, const Roots& roots, long depth) {
  const long count = round.rows.count(), total = candidates(drafts.topk, depth), width = round.width;
  std::vector<int64_t> drafted(count * total), parents(count * total), levels{0};
  std::vector<float> scores(count * total);
  drafted_tree(drafted.data(), scores.data(), parents.data(), drafts.head, step.tables, &roots, drafts.heats, depth,
               drafts.topk, total);
  for (long level = 1; level <= depth; ++level)
    levels.insert(levels.end(), level == 1 ? drafts.topk : drafts.topk * drafts.topk, level);
  for (auto* part : {&round.tokens, &round.depths, &round.parents, &round.words}) part->resize(count * width);
  selected(round.tokens.data(), round.depths.data(), round.parents.data(), round.words.data(), drafted.data(),
           scores.data(), parents.data(), levels.data(), round.nodes.data(), count, total, width);
}

// Of values [rows, width], those of real nodes, row by row.
std::vector<int64_t> packed(const std::vector<int64_t>& values, const Round& round) {
  std::vector<int64_t> flat;
  for (long row = 0; row < round.rows.count(); ++row) {
    const auto own = values.begin() + row * round.width;
    flat.insert(flat.end(), own, own + round.nodes[row]);
  }
  return flat;
}

// [nodes of all rows, width] the drafted ids above and at each node; -1 elsewhere, and for the root.
std::vector<int64_t> paths(const Round& round) {
  std::vector<int64_t> found;
  for (long row = 0; row < round.rows.count(); ++row)
    for (long node = 0; node < round.nodes[row]; ++node) {
      const long end = static_cast<long>(found.size());
      found.resize(end + round.width, -1);
      for (long above = node; above; above = round.parents[row * round.width + above])
        found[end + above] = round.tokens[row * round.width + above];
    }
  return found;
}

}  // namespace

extern "C" void round_drafted(int32_t* words, const Step* given, const Drafts* drafts) {
  const Step& step = *given;
  const Head& head = *drafts->head;
  const long hidden = head.body.hidden;
  Round& round = round_;
  round.rows.open(step, Answer(words, step.count, drafts->depth + 1));
  const long count = round.rows.count(), most = candidates(drafts->topk, drafts->depth);
  if (count == 0) return;
  for (auto* part : {&round.nodes, &round.tokens, &round.depths, &round.parents, &round.words}) part->clear();
  std::vector<float> seeds, temperatures;
  std::vector<int64_t> owners, lengths, tokens;
  round.drafting.clear();
  for (long row = 0; row < count; ++row) {
    const long place = round.rows.places[row];
    round.nodes.push_back(drafts->extends[place] ? std::min<long>(drafts->nodes[place], most) : 1);
    if (round.nodes[row] == 1 && drafts->topk == 1) continue;  // a tree has a place for every row
    round.drafting.push_back(row);
    owners.push_back(round.rows.owners[row]);
    lengths.push_back(round.rows.lengths[row]);
    tokens.push_back(round.rows.roots[row]);
    seeds.resize(seeds.size() + hidden);
    unpack(&seeds[seeds.size() - hidden], round.rows.seed(step, row), hidden, head.body.halves);
    const float heat = step.tables->sampling->temperature[round.rows.owners[row]];
    temperatures.push_back(heat < step.greedy_below ? 1.0f : heat);
  }
  round.width = *std::max_element(round.nodes.begin(), round.nodes.end());
  const Rows own{owners.data(), lengths.data(), static_cast<long>(owners.size())};
  const Roots roots{own, tokens.data(), seeds.data(), step.samples ? temperatures.data() : nullptr};
  const long depth = std::min(drafts->depth, round.width - 1);
  if (drafts->topk == 1 || depth == 0)
    draft_chains(round, step, *drafts, roots, depth);
  else
    draft_trees(round, step, *drafts, roots, depth);
}

extern "C" void round_verified(const Step* given, const Drafts* drafts) {
  const Step& step = *given;
  Round& round = round_;
  const Rows rows = round.rows.rows();
  if (rows.count == 0) return;
  const std::vector<int64_t> tokens = packed(round.tokens, round), depths = packed(round.depths, round);
  const std::vector<int64_t> words = round.words.empty() ? round.words : packed(round.words, round);
  std::vector<int64_t> of, next, chosen;
  Pass pass(*step.target, *step.tables);
  pass.lay(rows, round.nodes.data());
  round.firsts.clear();
  for (long row = 0, i = 0; row < rows.count; ++row) {
    round.firsts.push_back(i);
    for (long node = 0; node < round.nodes[row]; ++node, ++i) {
      pass.put(i, row, tokens[i], rows.lengths[row] + node, rows.lengths[row] + depths[i]);
      of.push_back(row);
      next.push_back(rows.lengths[row] + depths[i] + 1);
    }
  }
  float* stream = pass.embedded.data();
  round.taps.resize(pass.tokens() * drafts->boundaries * step.target->hidden);
  pass.run(stream, words.empty() ? nullptr : words.data(), round.taps.data(), drafts->tapped, drafts->boundaries);
  read(round.normed_stream, round.logits, stream, *step.target, pass.tokens());
  round.rows.choose(chosen, step, round.logits.data(), of, next,
                    step.edits ? paths(round) : std::vector<int64_t>());
  for (long row = 0; row < rows.count; ++row) {
    if (!round.rows.held(step, row)) continue;
    const long first = round.firsts[row], node = row * round.width;
    step.hold(&step, round.rows.places[row], round.nodes[row], &round.tokens[node], &round.parents[node],
              &chosen[first], &round.logits[first * step.target->output.outputs], &next[first]);
  }
  round.choices.assign(rows.count * round.width, 0);
  for (long row = 0; row < rows.count; ++row)
    std::copy_n(&chosen[round.firsts[row]], round.nodes[row], &round.choices[row * round.width]);
}

extern "C" void round_accepted(int32_t* words, const Step* given, const Drafts* drafts) {
  const Step& step = *given;
  const Model& target = *step.target;
  Round& round = round_;
  const Rows rows = round.rows.rows();
  if (rows.count == 0) return;
  Answer answer(words, step.count, drafts->depth + 1);
  std::vector<int64_t> counts(rows.count);
  round.steps = std::min(round.width, drafts->depth + 1);
  round.path.resize(rows.count * round.steps);
  round.along.resize(rows.count * round.steps);
  accepted(counts.data(), round.path.data(), round.along.data(), round.tokens.data(), round.choices.data(),
           round.parents.data(), round.nodes.data(), rows.count, round.width, round.steps);
  for (int64_t& count : counts) ++count;  // the bonus
  round.rows.end(step, round.along.data(), counts.data(), round.steps, answer);
  for (long row = 0; row < rows.count; ++row) {
    const long place = round.rows.places[row];
    answer.accepted(place) = static_cast<int32_t>(std::min(counts[row] - 1, round.rows.kept[row]));
    answer.drafted(place) = static_cast<int32_t>(round.nodes[row] - 1);
  }
  const long slot = 2 * target.kv_heads * target.dim * (target.halves ? sizeof(uint16_t) : sizeof(float));
  moved(target.pool, round.path.data(), rows.owners, rows.lengths, step.tables->pages, rows.count, round.steps,
        step.tables->per_row, target.page_size, target.count, target.layer_bytes, slot);
}

extern "C" void round_extended(const Step* given, const Drafts* drafts) {
  const Step& step = *given;
  const Head& head = *drafts->head;
  Round& round = round_;
  const Rows rows = round.rows.rows();
  if (rows.count == 0) return;
  const std::vector<int64_t>& kept = round.rows.kept;
  std::vector<int64_t> owners, lengths, pairs;
  std::vector<long> extends;
  for (long row = 0; row < rows.count; ++row) {
    if (!drafts->extends[round.rows.places[row]]) continue;
    extends.push_back(row);
    owners.push_back(rows.owners[row]);
    lengths.push_back(rows.lengths[row]);
    pairs.push_back(kept[row]);
  }
  const long count = static_cast<long>(extends.size());
  const long hidden = head.body.hidden, wide = head.fuse.inputs;
  std::vector<float> taps;
  Pass pass(head.body, *step.tables);
  pass.lay({owners.data(), lengths.data(), count}, pairs.data());
  for (long own_row = 0, i = 0; own_row < count; ++own_row) {
    const long row = extends[own_row];
    for (long pair = 0; pair < kept[row]; ++pair, ++i) {
      const long at = row * round.steps + pair, length = rows.lengths[row] + pair;
      const float* own = &round.taps[(round.firsts[row] + round.path[at]) * wide];
      taps.insert(taps.end(), own, own + wide);
      pass.put(i, own_row, round.along[at], length, length);
    }
  }
  std::vector<float> stream = fused(taps, head, pass.tokens());
  if (count) pass.run(stream.data(), nullptr, nullptr, nullptr, 0, true);
  for (long row = 0, found = 0; row < rows.count; ++row) {
    std::vector<char> seed(step.futures->seed_bytes);  // zero in rows without head KV
    const bool own = drafts->extends[round.rows.places[row]];
    const long last = std::max<long>(kept[row] - 1, 0);
    if (own && kept[row]) pack(seed.data(), &stream[found++ * hidden], hidden, head.body.halves);
    round.rows.publish(step, row, round.along[row * round.steps + last], seed.data());
  }
}
