package history

import "cmp"

// checkElements: of all clients that add the same element to a set, exactly one gets the reply that
// it did, and its element stays. An element is a key of the family element, which clients add by
// SET NX.
func (j *judge) checkElements() {
	for key, ops := range j.history.inKeyOrder() {
		if family(key) != "element" {
			continue
		}
		var added *Op
		unknown := 0
		for _, o := range ops {
			switch {
			case o.Verb != Set:
			case !o.Known:
				unknown++
			case o.Applied() && added != nil:
				j.violation("element added twice", "%s and %s", added, o)
			case o.Applied():
				added = o
			}
		}
		for _, o := range ops {
			if o.Verb != Get || !o.Known || o.Reply.Error != "" || added == nil ||
				o.Call < added.Replied {
				continue
			}
			if value := string(o.Reply.Bulk); value != added.Value {
				j.violation("element lost", "%s after %s", o, added)
			}
		}
		if first := firstRefused(ops); added == nil && unknown == 0 && first != nil {
			j.violation("element lost", "nobody added it, and yet it was there for %s", first)
		}
	}
}

// firstRefused returns the first SET that was not applied because the element was there, or nil.
func firstRefused(ops []*Op) (first *Op) {
	for _, o := range ops {
		if o.Verb == Set && o.Known && !o.Applied() && o.Reply.Error == "" &&
			(first == nil || cmp.Less(o.Call, first.Call)) {
			first = o
		}
	}
	return first
}
