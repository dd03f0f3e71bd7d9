// Package wire encodes and decodes the protocol between clients and the store: topics, requests,
// replies and notifications. It is pure: no I/O, no clock, no state.
package wire
