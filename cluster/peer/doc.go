// Package peer is what the members of a cluster ask and tell each other: the methods, the errors on their way back, what a member says
// of itself, and what a member knows of the others.
package peer
