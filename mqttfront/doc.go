// Package mqttfront is the MQTT side of a node: it turns requests into commands, and publishes
// replies and notifications.
//
//	front, err := mqttfront.New(config, environment)
//	node, err := cluster.Open(..., front) // front is the cluster.Observer
//	front.SetStore(node)
//	front.Run(ctx) // connects the node to the broker
//	// While the node leads, the cluster calls front.Serve.
//
// Every node is connected to the broker by its own session (package session), which shows whether
// the broker is there. The leader first takes over the publishing connections (package outbox), so
// that no earlier leader publishes any more, and then the cluster's session, which brings the
// requests that are not acknowledged yet. Package wire decodes requests and encodes replies.
// Package leader executes and answers them. Package mirror keeps retained messages like the state.
//
// The package connects these parts and runs them. It knows nothing of Raft: it is given a
// leader.Store. It knows nothing of a particular broker either: what differs between brokers is in
// a broker.Driver.
package mqttfront
