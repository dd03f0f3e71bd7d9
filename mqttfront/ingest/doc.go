// Package ingest holds the sessions by which requests come from the broker.
//
// Each node has its own session (NodeSession). By default it brings all requests, and the broker keeps it while the node is away. With
// role.Config.IngestAtLeader it only tells whether the broker is there, and the leader has a second session that brings the requests (LeaderSession).
//
// What comes by a session may be old: it lay in a queue or in a socket. Deduplication forgets outcomes, so a request that is older than
// Config.SessionExpiry must not be executed. A node therefore sends itself probes through the broker (prober): a probe that returns says when
// the broker received what follows it. A Barrier says what the session cannot deliver any more.
//
// The package knows nothing of the state, of roles and of the payload of requests: it gives messages to a Handler.
//
// Locks: prober.mu, status.mu and Barrier.mu are last in the order: no other lock of the project is taken while one of them is held, but prober.mu is
// held while the ContactStore is called. No lock of this package is held while a Handler is called.
package ingest
