// Package peer is the protocol between the members of a cluster: the methods, the encoding of
// errors, the status that a member reports of itself, and what a member knows of the others.
package peer
