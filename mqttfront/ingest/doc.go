// Package ingest holds the sessions by which requests come from the broker.
//
// A node has a session of its own (NodeSession), kept by the broker while the node is away. It brings all requests, or only tells whether the broker is
// there. Where requests come by one session of the cluster, the leader has that, too (LeaderSession).
//
// What comes by a session may be old: it lay in a queue or in a socket. Deduplication forgets outcomes, so a request that is older than
// Config.SessionAge must not be executed. A node therefore sends itself probes through the broker (prober): a probe that returns says when
// the broker received what follows it. A Barrier says what the session cannot deliver any more.
//
// The package knows nothing of the state, of roles and of the payload of requests: it gives messages to a Handler.
//
// Locks: prober.mu, status.mu and Barrier.mu are last in the order: no other lock is taken while one of them is held. No lock is held while a
// Handler is called.
package ingest
