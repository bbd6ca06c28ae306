; A call that fits is run; then the functions that Python calls. The abbreviations are explained in entry_text.py.

; References of the leaves: taken (%take) or given back.
define internal void @hold(ptr %t, ptr %items, i1 %take) {
start:
  %flags = get i64 %t[$FLAGS]
  %wanted = and i64 %flags, $HOLD
  %any = icmp ne i64 %wanted, 0
  br i1 %any, label %leaves, label %end
leaves:
  %count = get i64 %t[$LEAF_COUNT]
  %first = get i64 %t[$LEAVES]
  %row0 = row %t[%first]
  br label %next
next:
  %l = phi i64 [ 0, %leaves ], [ %l1, %taken ], [ %l1, %given ]
  %row = phi ptr [ %row0, %leaves ], [ %row1, %taken ], [ %row1, %given ]
  %l1 = add i64 %l, 1
  %row1 = row %row[$LEAF_WORDS]
  %done = icmp eq i64 %l, %count
  br i1 %done, label %end, label %leaf
leaf:
  %i = get i64 %row[$LEAF_ITEM]
  %x = at ptr %items[%i]
  br i1 %take, label %taken, label %given
taken:
  call void @Py_IncRef(ptr %x)
  br label %next
given:
  call void @Py_DecRef(ptr %x)
  br label %next
end:
  ret void
}

; The matched call: results allocated, the program run, the result tree built. Null with an exception on failure.
define internal ptr @run(ptr %t, ptr %items, ptr %pointers, ptr %values) {
start:
  %status = alloca [8 x i64], align 64
  store [8 x i64] zeroinitializer, ptr %status
  %outcount = get i64 %t[$OUT_COUNT]
  %buildcount = get i64 %t[$BUILD_COUNT]
  %valuecount = add i64 %outcount, %buildcount
  br label %clear
clear:
  %z = phi i64 [ 0, %start ], [ %z1, %zero ]
  %z1 = add i64 %z, 1
  %cleared = icmp eq i64 %z, %valuecount
  br i1 %cleared, label %constants, label %zero
zero:
  put ptr null, %values[%z]
  br label %clear

constants:
  call void @hold(ptr %t, ptr %items, i1 true)
  %constslot = get i64 %t[$CONST_SLOT]
  %const0 = row %pointers[%constslot]
  %constcount = get i64 %t[$CONST_COUNT]
  %constoffset = get i64 %t[$CONSTS]
  %consts = row %t[%constoffset]
  br label %const
const:
  %c = phi i64 [ 0, %constants ], [ %c1, %setconst ]
  %c1 = add i64 %c, 1
  %allconsts = icmp eq i64 %c, %constcount
  br i1 %allconsts, label %outputs, label %setconst
setconst:
  %address = at ptr %consts[%c]
  put ptr %address, %const0[%c]
  br label %const

outputs:
  %leafslot = get i64 %t[$LEAF_SLOT]
  %inputs = row %pointers[%leafslot]
  %outslot = get i64 %t[$OUT_SLOT]
  %out0 = row %pointers[%outslot]
  %outoffset = get i64 %t[$OUTS]
  %outrow0 = row %t[%outoffset]
  br label %out
out:
  %o = phi i64 [ 0, %outputs ], [ %o1, %setout ]
  %row = phi ptr [ %outrow0, %outputs ], [ %row1, %setout ]
  %o1 = add i64 %o, 1
  %row1 = row %row[$OUT_WORDS]
  %allouts = icmp eq i64 %o, %outcount
  br i1 %allouts, label %arena, label %output
output:
  %leaf = get i64 %row[$OUT_LEAF]
  %fresh = icmp slt i64 %leaf, 0
  br i1 %fresh, label %allocate, label %offered
offered:
  %given = call ptr @donated(ptr %t, i64 %leaf, ptr %items, ptr %inputs)
  %declined = icmp eq ptr %given, null
  br i1 %declined, label %allocate, label %donated
donated:
  call void @Py_IncRef(ptr %given)
  br label %setout
allocate:
  %allocator = get ptr %row[$OUT_ALLOCATE]
  %small = icmp eq ptr %allocator, null
  br i1 %small, label %allocatesmall, label %allocatelarge
allocatelarge:
  %large = call ptr @PyObject_CallNoArgs(ptr %allocator)
  %nolarge = icmp eq ptr %large, null
  br i1 %nolarge, label %undo, label %setout
allocatesmall:
  %descr = get ptr %row[$OUT_DESCR]
  %ndim = get i64 %row[$OUT_NDIM]
  %nd = trunc i64 %ndim to i32
  %shapeoffset = get i64 %row[$OUT_SHAPE]
  %shape = row %t[%shapeoffset]
  call void @Py_IncRef(ptr %descr)
  %new = call ptr @PyArray_NewFromDescr(ptr @Array, ptr %descr, i32 %nd, ptr %shape,
                                        ptr null, ptr null, i32 0, ptr null)
  %failed = icmp eq ptr %new, null
  br i1 %failed, label %undo, label %setout
setout:
  %object = phi ptr [ %given, %donated ], [ %large, %allocatelarge ], [ %new, %allocatesmall ]
  put ptr %object, %values[%o]
  %data = get ptr %object[$ARRAY_DATA]
  put ptr %data, %out0[%o]
  br label %out

arena:
  %pool = get ptr %t[$POOL]
  %noarena = icmp eq ptr %pool, null
  br i1 %noarena, label %call, label %take
take:
  %taken = call ptr @take_arena(ptr %pool)
  %nomemory = icmp eq ptr %taken, null
  br i1 %nomemory, label %memory, label %call
memory:
  call ptr @PyErr_NoMemory()
  br label %undo
call:
  %block = phi ptr [ null, %arena ], [ %taken, %take ]
  store ptr %block, ptr %pointers
  %statusslot = row %pointers[1]
  store ptr %status, ptr %statusslot
  %program = get ptr %t[$PROGRAM]
  %flags = get i64 %t[$FLAGS]
  %release = and i64 %flags, $RELEASE
  %long = icmp ne i64 %release, 0
  br i1 %long, label %callfree, label %callheld
callheld:
  %code1 = call i64 %program(ptr %pointers)
  br label %called
callfree:
  %thread = call ptr @PyEval_SaveThread()
  %code2 = call i64 %program(ptr %pointers)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %called
called:
  %returned = phi i64 [ %code1, %callheld ], [ %code2, %callfree ]
  br i1 %noarena, label %release0, label %give
give:
  %intact = call i64 @give_arena(ptr %pool, ptr %block)
  %damaged = icmp eq i64 %intact, 0
  %given2 = select i1 %damaged, i64 $DAMAGED, i64 %returned
  br label %release0
release0:
  %code = phi i64 [ %returned, %called ], [ %given2, %give ]
  call void @hold(ptr %t, ptr %items, i1 false)
  %ok = icmp eq i64 %code, 0
  br i1 %ok, label %tree, label %raise
raise:
  call void @raise_status(ptr %t, i64 %code, ptr %status)
  br label %drop

tree:
  %buildoffset = get i64 %t[$BUILDS]
  %build0 = row %t[%buildoffset]
  br label %build
build:
  %b = phi i64 [ 0, %tree ], [ %b1, %builder ]
  %op = phi ptr [ %build0, %tree ], [ %op1, %builder ]
  %b1 = add i64 %b, 1
  %op1 = row %op[$BUILD_WORDS]
  %allbuilt = icmp eq i64 %b, %buildcount
  br i1 %allbuilt, label %finish, label %builder
builder:
  %built = call i1 @build(ptr %t, ptr %op, ptr %values)
  br i1 %built, label %build, label %drop
finish:
  %root = get i64 %t[$ROOT]
  %result = at ptr %values[%root]
  ret ptr %result

undo:
  call void @hold(ptr %t, ptr %items, i1 false)
  br label %drop
drop:
  %v = phi i64 [ 0, %undo ], [ 0, %raise ], [ 0, %builder ], [ %v1, %dropped ]
  %v1 = add i64 %v, 1
  %alldropped = icmp eq i64 %v, %valuecount
  br i1 %alldropped, label %fail, label %dropped
dropped:
  %left = at ptr %values[%v]
  call void @Py_DecRef(ptr %left)
  br label %drop
fail:
  ret ptr null
}

; All tables in turn. 1 (no address) where none matches.
define internal ptr @attempt(ptr %head, ptr %args, i64 %nargs, ptr %kwnames) noinline {
start:
  %itemwords = get i64 %head[$MAX_ITEMS]
  %pointerwords = get i64 %head[$MAX_POINTERS]
  %leafwords = get i64 %head[$MAX_LEAVES]
  %valuewords = get i64 %head[$MAX_VALUES]
  %items = alloca ptr, i64 %itemwords
  %pointers = alloca ptr, i64 %pointerwords
  %spill = alloca i64, i64 %leafwords
  %values = alloca ptr, i64 %valuewords
  %owned = alloca i64
  %count = get i64 %head[$TABLE_COUNT]
  %tables = row %head[$HEAD_WORDS]
  br label %next
next:
  %i = phi i64 [ 0, %start ], [ %i1, %missed ], [ %i1, %quiet ]
  %i1 = add i64 %i, 1
  %done = icmp eq i64 %i, %count
  br i1 %done, label %none, label %try
try:
  %t = at ptr %tables[%i]
  %hit = call i1 @match(ptr %t, ptr %args, i64 %nargs, ptr %kwnames, ptr %items, ptr %pointers, ptr %spill,
                      ptr %owned)
  br i1 %hit, label %found, label %missed
missed:
  %left = load i64, ptr %owned
  %clean = icmp eq i64 %left, 0
  br i1 %clean, label %next, label %dirty
dirty:
  call void @disown(ptr %items, ptr %owned)
  %error = call ptr @PyErr_Occurred()
  %quietly = icmp eq ptr %error, null
  br i1 %quietly, label %quiet, label %raised
quiet:
  br label %next
raised:
  ret ptr null
found:
  %hits = get ptr %head[$HITS]
  %uncounted = icmp eq ptr %hits, null
  br i1 %uncounted, label %matched, label %counted
counted:
  %before = load i64, ptr %hits, align 1
  %after = add i64 %before, 1
  store i64 %after, ptr %hits, align 1
  br label %matched
matched:
  %result = call ptr @run(ptr %t, ptr %items, ptr %pointers, ptr %values)
  call void @disown(ptr %items, ptr %owned)
  ret ptr %result
none:
  ret ptr inttoptr (i64 1 to ptr)
}

define ptr @enter(ptr %self, ptr %args, i64 %nargsf, ptr %kwnames) {
start:
  %context = alloca ptr
  %owned = row %self[$TUPLE_WORDS]
  %first = load ptr, ptr %owned
  %head = getelementptr i8, ptr %first, i64 $BYTES_DATA
  %nargs = and i64 %nargsf, 9223372036854775807
  %switch = get ptr %head[$SWITCH]
  %noswitch = icmp eq ptr %switch, null
  br i1 %noswitch, label %guard, label %switched
switched:
  %bit = load volatile i8, ptr %switch
  %on = icmp eq i8 %bit, 0
  br i1 %on, label %guard, label %python
guard:
  %variable = get ptr %head[$CONTEXT]
  %noguard = icmp eq ptr %variable, null
  br i1 %noguard, label %native, label %look
look:
  %error = call i32 @PyContextVar_Get(ptr %variable, ptr @None, ptr %context)
  %failed = icmp slt i32 %error, 0
  br i1 %failed, label %fail, label %looked
looked:
  %value = load ptr, ptr %context
  call void @Py_DecRef(ptr %value)
  %outside = icmp eq ptr %value, @None
  br i1 %outside, label %native, label %python
native:
  %result = call ptr @attempt(ptr %head, ptr %args, i64 %nargs, ptr %kwnames)
  %missed = icmp eq ptr %result, inttoptr (i64 1 to ptr)
  br i1 %missed, label %python, label %return
return:
  ret ptr %result
python:
  %fallback = get ptr %head[$FALLBACK]
  %answer = call ptr @PyObject_Vectorcall(ptr %fallback, ptr %args, i64 %nargs, ptr %kwnames)
  ret ptr %answer
fail:
  ret ptr null
}

; The vectorcall function of an object whose slot holds a builtin made of @enter (or anything that can be called).
define ptr @call(ptr %object, ptr %args, i64 %nargsf, ptr %kwnames) {
start:
  %target = get ptr %object[$OBJECT_TARGET]
  %empty = icmp eq ptr %target, null
  br i1 %empty, label %missing, label %present
missing:
  call void @PyErr_SetString(ptr @TypeError, ptr @no_target)
  ret ptr null
present:
  call void @Py_IncRef(ptr %target)
  %type = get ptr %target[$TYPE]
  %isbuiltin = icmp eq ptr %type, @builtin
  br i1 %isbuiltin, label %method, label %other
method:
  %definition = get ptr %target[$BUILTIN_METHOD]
  %function = get ptr %definition[$METHOD_FUNCTION]
  %ours = icmp eq ptr %function, @enter
  br i1 %ours, label %direct, label %other
direct:
  %self = get ptr %target[$BUILTIN_SELF]
  %result1 = call ptr @enter(ptr %self, ptr %args, i64 %nargsf, ptr %kwnames)
  br label %done
other:
  %nargs = and i64 %nargsf, 9223372036854775807
  %result2 = call ptr @PyObject_Vectorcall(ptr %target, ptr %args, i64 %nargs, ptr %kwnames)
  br label %done
done:
  %result = phi ptr [ %result1, %direct ], [ %result2, %other ]
  call void @Py_DecRef(ptr %target)
  ret ptr %result
}
