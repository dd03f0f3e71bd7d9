// Package mqttfront is the MQTT side of a node: requests in, commands out; replies and notifications back.
//
// With cluster.ingest: everywhere, every node receives every request by its own ingest session (package ingest). With
// cluster.ingest: leader, only the leader receives them. What becomes of a request is decided by the node's role (package
// role), over what is pending (package pending); its bytes are decoded and encoded by package wire. The leader publishes
// replies and notifications on the publishing connections (package publish). A new leader takes these connections over from
// the old one before it publishes anything.
//
// The package connects these parts and runs them. It knows nothing of Raft: it is given a role.Store. It knows nothing of a
// particular broker either: what differs between brokers is in a broker.Driver.
package mqttfront
