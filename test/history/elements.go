package history

import "cmp"

// checkElements: of all who add an element to a set exactly one is told to have done it, and that one's element stays.
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
			if o.Verb != Get || !o.Known || o.Reply.Error != "" || added == nil || o.Call < added.Replied {
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

// firstRefused returns the first attempt that found the element there.
func firstRefused(ops []*Op) (first *Op) {
	for _, o := range ops {
		if o.Verb == Set && o.Known && !o.Applied() && o.Reply.Error == "" && (first == nil || cmp.Less(o.Call, first.Call)) {
			first = o
		}
	}
	return first
}
