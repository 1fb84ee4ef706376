package retry

import "errors"

// Classifier says what an unmarked error means for the next step. ClassNone
// means "I do not know": the next classifier is asked and in the end the scene
// decides. A classifier is a pure function and may be called concurrently.
//
// The ready-made classifiers answer one question: may the failed call have
// taken effect? They judge the call that made the error and see nothing else
// that a handler did before it. A handler that makes several calls which take
// effect marks its errors itself (Permanent, Transient, Unknown).
type Classifier func(err error) Class

// FirstOf asks each classifier in turn and returns the first answer that is
// not ClassNone. Nil classifiers are passed over; with none left the answer is
// ClassNone. The special comes first, as in
// FirstOf(mine, ClassifySQLState, ClassifyNet).
func FirstOf(classifiers ...Classifier) Classifier {
	// Copied, so that a caller who reuses the slice does not change us.
	own := make([]Classifier, 0, len(classifiers))
	for _, c := range classifiers {
		if c != nil {
			own = append(own, c)
		}
	}
	return func(err error) Class {
		if err == nil {
			return ClassNone
		}
		for _, c := range own {
			if class := c(err); class != ClassNone {
				return class
			}
		}
		return ClassNone
	}
}

// classTree walks err from the outside in and returns the first answer of
// node, which looks at one error only and never unwraps. The outermost answer
// wins because the wrapper knows what its cause cannot: a timeout inside a
// dial was before sending, the same timeout alone may have been after it.
//
// errors.As would not do here: of joined errors it takes the first that fits,
// so a refused connection would hide a reset one beside it. Of joined errors
// the graver answer counts, as for marks.
func classTree(err error, node func(error) Class) Class {
	for err != nil {
		if c := node(err); c != ClassNone {
			return c
		}
		if j, ok := err.(interface{ Unwrap() []error }); ok {
			found := ClassNone
			for _, e := range j.Unwrap() {
				found = graver(found, classTree(e, node))
			}
			return found
		}
		err = errors.Unwrap(err)
	}
	return ClassNone
}

// isNode is errors.Is for err alone, without what it wraps.
func isNode(err, target error) bool {
	if err == target {
		return true
	}
	i, ok := err.(interface{ Is(error) bool })
	return ok && i.Is(target)
}
