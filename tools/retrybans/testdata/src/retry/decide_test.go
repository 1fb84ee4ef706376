package retry

import (
	"math/rand"
	"os"
	"time"
)

var _, _, _ = time.Now, rand.Int, os.Args
