// Package ingest holds the sessions by which requests come from the broker.
//
// Each node has its own session (NodeSession). By default it delivers all requests, and the broker keeps it while the node is away. With
// role.Config.IngestAtLeader it only shows whether the broker can be reached, and the leader has a second session, which delivers the requests
// (LeaderSession).
//
// A session may deliver old requests, which have waited in a queue or in a socket. The dedup table forgets outcomes, so a request that is older than
// Config.SessionExpiry must not be executed. A node therefore sends probes to itself through the broker (prober). The broker received the messages behind
// a probe after the probe, so a probe that returns bounds their age. A Barrier is a moment: the session cannot deliver anything any more that the broker
// received before it.
//
// The package knows nothing of the state, of roles and of the payload of requests: it gives messages to a Handler.
//
// Locks: prober.mu, status.mu and Barrier.mu are last in the order: no other lock of the project is taken while one of them is held, except in the
// ContactStore, which is called with prober.mu held. No lock of this package is held while a Handler is called.
package ingest
