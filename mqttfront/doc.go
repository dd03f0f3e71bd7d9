// Package mqttfront is the MQTT side of a node: it turns requests into commands, and publishes replies and notifications.
//
// With cluster.ingest: everywhere, every node receives every request by its own ingest session (package ingest). With
// cluster.ingest: leader, only the leader receives them. Package wire decodes requests and encodes replies.
// Package pending keeps the requests that are not known to be answered. The node's role (package role) decides what happens
// to each of them. The leader publishes replies and notifications on the publishing connections (package publish). A new
// leader takes these connections over from the old one before it publishes any reply or notification.
//
// The package connects these parts and runs them. It knows nothing of Raft: it is given a role.Store. It knows nothing of a
// particular broker either: what differs between brokers is in a broker.Driver.
package mqttfront
