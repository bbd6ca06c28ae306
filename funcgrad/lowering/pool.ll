; Arenas of one program: a list of free blocks, changed under the GIL. A block keeps what malloc returned one word
; before its aligned start, and the next free block two words before. The pool is three words: the first free block,
; the size of an arena, and whether 8 guard words stand behind each.

define ptr @take_arena(ptr %pool) {
start:
  %free = load ptr, ptr %pool
  %empty = icmp eq ptr %free, null
  br i1 %empty, label %make, label %reuse
reuse:
  %second = getelementptr i8, ptr %free, i64 -16
  %next = load ptr, ptr %second
  store ptr %next, ptr %pool
  ret ptr %free
make:
  %sizes = getelementptr i64, ptr %pool, i64 1
  %size = load i64, ptr %sizes
  %padded = add i64 %size, 192
  %raw = call ptr @PyMem_RawMalloc(i64 %padded)
  %failed = icmp eq ptr %raw, null
  br i1 %failed, label %none, label %align
none:
  ret ptr null
align:
  %address = ptrtoint ptr %raw to i64
  %above = add i64 %address, 127
  %aligned = and i64 %above, -64
  %block = inttoptr i64 %aligned to ptr
  %back = getelementptr i8, ptr %block, i64 -8
  store ptr %raw, ptr %back
  %guard = getelementptr i8, ptr %block, i64 %size
  store <8 x i64> splat (i64 -77129852189294865), ptr %guard, align 1
  ret ptr %block
}

; 1, or 0 if the guard words are not what they were: then the block is never used again.
define i64 @give_arena(ptr %pool, ptr %block) {
start:
  %flags = getelementptr i64, ptr %pool, i64 2
  %flag = load i64, ptr %flags
  %guarded = icmp ne i64 %flag, 0
  br i1 %guarded, label %check, label %keep
check:
  %sizes = getelementptr i64, ptr %pool, i64 1
  %size = load i64, ptr %sizes
  %guard = getelementptr i8, ptr %block, i64 %size
  %words = load <8 x i64>, ptr %guard, align 1
  %changed = icmp ne <8 x i64> %words, splat (i64 -77129852189294865)
  %any = bitcast <8 x i1> %changed to i8
  %intact = icmp eq i8 %any, 0
  br i1 %intact, label %keep, label %damaged
damaged:
  ret i64 0
keep:
  %free = load ptr, ptr %pool
  %link = getelementptr i8, ptr %block, i64 -16
  store ptr %free, ptr %link
  store ptr %block, ptr %pool
  ret i64 1
}

declare ptr @PyMem_RawMalloc(i64)
