// Package mqttfront is the MQTT side of a node: requests in, commands out; replies and notifications back.
//
// Every node holds an ingest session (package ingest) and receives every request. What becomes of requests is decided by the node's role (package
// role), over what is pending (package pending); their bytes are decoded and encoded by package wire. The leader publishes replies and notifications on the
// outgoing connections (package publish). A new leader takes these connections over from the old one before it publishes anything.
//
// The package connects these parts and runs them. It knows nothing of Raft: it is given a role.Store. It knows nothing of a particular broker either:
// what differs between brokers is in a broker.Driver.
package mqttfront
