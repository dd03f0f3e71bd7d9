// Package wire is the protocol between clients and the store as bytes: topics, requests, replies and notifications. It is pure: no I/O, no clock, no state.
package wire
