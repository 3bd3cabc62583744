/* The graphs of narrow passes: llama.cpp keeps the last graph only, so that it builds another one whenever the number of
   tokens changes, as it does around each draft: for small models an eighth of a pass. */
#ifndef EDGESPEC_GRAPHS_H
#define EDGESPEC_GRAPHS_H

#include "ggml-cpp.h"
#include "llama-graph.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace edgespec {

/* The graphs of passes over up to NARROW tokens that return logits, one for each number of tokens, with the scheduler in
   which it is allocated. All other passes use the first scheduler, whose buffers were reserved for the widest pass. The
   members of llama_context are those of the graph that is in use. */
class kept_graphs {
  public:
    enum { NARROW = 16 };

    /* Members of llama_context. */
    struct members {
        ggml_backend_sched_ptr & sched;
        llm_graph_result_ptr & result;
        llm_graph_result *& active;
    };

  private:
    enum { MOST = 8 };

    struct graph {
        ggml_backend_sched_ptr sched;
        llm_graph_result_ptr result;
        llm_graph_result * active; /* allocated in the scheduler: this result, or that of a pass without logits */
        uint32_t tokens; /* 0: the first scheduler */
    };

    std::vector<graph> others; /* the one that was used last is at the end */
    uint32_t tokens = 0; /* of the graph in use */

    void use(members context, size_t place) {
        graph next = std::move(others[place]);
        others.erase(others.begin() + place);
        put_away(context);
        std::swap(context.sched, next.sched);
        std::swap(context.result, next.result);
        context.active = next.active;
        tokens = next.tokens;
    }

    void put_away(members context) {
        others.push_back({std::move(context.sched), std::move(context.result), context.active, tokens});
    }

    template <class F> size_t find(F is_it) const {
        return std::find_if(others.begin(), others.end(), is_it) - others.begin();
    }

  public:
    /* Uses the first scheduler. */
    void use_first(members context) {
        if (tokens) {
            use(context, find([](const graph & each) { return each.tokens == 0; }));
        }
    }

    /* Uses the graph for a pass over `n` tokens, or a scheduler in which it can be built, which `make_sched` returns.
       `nodes` is the most that it can have. */
    template <class F> void choose(members context, uint32_t n, bool has_logits, uint32_t nodes, F make_sched) {
        if (!context.active) {
            /* All graphs were dropped, since something that they depend on has changed, or the last one was not built. In
               the first case the scheduler in use was reserved again, so it is the first one from now on. */
            others.clear();
            tokens = 0;
        }
        if (!has_logits || n > NARROW) {
            use_first(context);
            return;
        }
        if (tokens == n) {
            return;
        }
        size_t place = find([&](const graph & each) { return each.tokens == n; });
        if (place == others.size() && others.size() >= MOST) {
            place = find([](const graph & each) { return each.tokens != 0; });
        }
        if (place < others.size()) {
            use(context, place);
        } else {
            put_away(context);
            context.sched = make_sched();
            context.result.reset(new llm_graph_result(nodes));
            context.active = nullptr;
        }
        tokens = n;
    }
};

} // namespace edgespec

#endif
