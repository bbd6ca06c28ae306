; What not every call needs: dicts, donated arguments, errors, containers of results.
; The abbreviations are explained in entry_text.py.

; Values of an exact dict with n string keys, into %dst in the order of %keys. %order is the order of insertion that
; the table was made from: where it is met, comparing pointers is enough.
define i1 @match_dict(ptr %dict, i64 %n, ptr %keys, ptr %order, ptr %dst) {
start:
  %pos = alloca i64
  %key = alloca ptr
  %value = alloca ptr
  store i64 0, ptr %pos
  %size = call i64 @PyDict_Size(ptr %dict)
  %full = icmp eq i64 %size, %n
  br i1 %full, label %next, label %no
next:
  %j = phi i64 [ 0, %start ], [ %j1, %take ]
  %more = call i32 @PyDict_Next(ptr %dict, ptr %pos, ptr %key, ptr %value)
  %end = icmp eq i32 %more, 0
  br i1 %end, label %ended, label %inside
ended:
  %all = icmp eq i64 %j, %n
  ret i1 %all
inside:
  %expected = icmp ult i64 %j, %n
  br i1 %expected, label %compare, label %no
compare:
  %k = load ptr, ptr %key
  %i = at i64 %order[%j]
  %want = at ptr %keys[%i]
  %same = icmp eq ptr %k, %want
  br i1 %same, label %take, label %search
take:
  %v = load ptr, ptr %value
  put ptr %v, %dst[%i]
  %j1 = add i64 %j, 1
  br label %next

search:
  store i64 0, ptr %pos
  br label %scan
scan:
  %another = call i32 @PyDict_Next(ptr %dict, ptr %pos, ptr %key, ptr %value)
  %scanned = icmp eq i32 %another, 0
  br i1 %scanned, label %find, label %check
check:
  %s = load ptr, ptr %key
  %type = get ptr %s[$TYPE]
  %string = icmp eq ptr %type, @str
  br i1 %string, label %scan, label %no
find:
  %f = phi i64 [ 0, %scan ], [ %f1, %found ]
  %done = icmp eq i64 %f, %n
  br i1 %done, label %yes, label %look
look:
  %name = at ptr %keys[%f]
  %hit = call ptr @PyDict_GetItemWithError(ptr %dict, ptr %name)
  %absent = icmp eq ptr %hit, null
  br i1 %absent, label %no, label %found
found:
  put ptr %hit, %dst[%f]
  %f1 = add i64 %f, 1
  br label %find
yes:
  ret i1 true
no:
  ret i1 false
}

; References to the items up to %end are taken; %owned says how many were before.
define void @own(ptr %items, ptr %owned, i64 %end) {
start:
  %first = load i64, ptr %owned
  store i64 %end, ptr %owned
  br label %next
next:
  %i = phi i64 [ %first, %start ], [ %i1, %take ]
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i, %end
  br i1 %more, label %take, label %done
take:
  %x = at ptr %items[%i]
  call void @Py_IncRef(ptr %x)
  br label %next
done:
  ret void
}

; And given back.
define void @disown(ptr %items, ptr %owned) {
start:
  %end = load i64, ptr %owned
  br label %next
next:
  %i = phi i64 [ 0, %start ], [ %i1, %drop ]
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i, %end
  br i1 %more, label %drop, label %done
drop:
  %x = at ptr %items[%i]
  call void @Py_DecRef(ptr %x)
  br label %next
done:
  ret void
}

; The children of a registered node: a new list of %n objects, or null, with or without an exception.
define ptr @opened(ptr %function, ptr %x, i64 %n) {
start:
  %children = call ptr @PyObject_CallOneArg(ptr %function, ptr %x)
  %raised = icmp eq ptr %children, null
  br i1 %raised, label %none, label %check
check:
  %type = get ptr %children[$TYPE]
  %islist = icmp eq ptr %type, @list
  br i1 %islist, label %count, label %drop
count:
  %size = get i64 %children[$SIZE]
  %fits = icmp eq i64 %size, %n
  br i1 %fits, label %good, label %drop
drop:
  call void @Py_DecRef(ptr %children)
  br label %none
none:
  ret ptr null
good:
  ret ptr %children
}

; Leaf %l, if it may be overwritten: an array that owns its writeable memory or has it from the pool, was never asked
; for a buffer, and shares nothing with another argument. Otherwise null.
define ptr @donated(ptr %t, i64 %l, ptr %items, ptr %inputs) {
start:
  %first = get i64 %t[$LEAVES]
  %count = get i64 %t[$LEAF_COUNT]
  %rows = row %t[%first]
  %skip = mul i64 %l, $LEAF_WORDS
  %mine = row %rows[%skip]
  %i = get i64 %mine[$LEAF_ITEM]
  %x = at ptr %items[%i]
  %type = get ptr %x[$TYPE]
  %plain = icmp eq ptr %type, @ndarray
  %ours = icmp eq ptr %type, @Array
  %array = or i1 %plain, %ours
  br i1 %array, label %owner, label %no
owner:
  %f = get i32 %x[$ARRAY_FLAGS]
  %w = and i32 %f, $WRITEABLE
  %writeable = icmp ne i32 %w, 0
  %exported = get ptr %x[$ARRAY_BUFFER]
  %private = icmp eq ptr %exported, null
  %may = and i1 %writeable, %private
  br i1 %may, label %memory, label %no
memory:
  %own = and i32 %f, $OWNED
  %owned = icmp ne i32 %own, 0
  br i1 %owned, label %range, label %borrowed
borrowed:
  %base = get ptr %x[$ARRAY_BASE]
  %nobase = icmp eq ptr %base, null
  br i1 %nobase, label %no, label %pooled
pooled:
  %basetype = get ptr %base[$TYPE]
  %block = icmp eq ptr %basetype, @Block
  br i1 %block, label %range, label %no
range:
  %begin = at i64 %inputs[%l]
  %size = get i64 %mine[$LEAF_SIZE]
  %end = add i64 %begin, %size
  br label %other
other:
  %m = phi i64 [ 0, %range ], [ %m1, %apart ]
  %row = phi ptr [ %rows, %range ], [ %nextrow, %apart ]
  %m1 = add i64 %m, 1
  %nextrow = row %row[$LEAF_WORDS]
  %done = icmp eq i64 %m, %count
  br i1 %done, label %yes, label %compare
compare:
  %self = icmp eq i64 %m, %l
  br i1 %self, label %apart, label %overlap
overlap:
  %j = get i64 %row[$LEAF_ITEM]
  %y = at ptr %items[%j]
  %twice = icmp eq ptr %x, %y
  %begin2 = at i64 %inputs[%m]
  %size2 = get i64 %row[$LEAF_SIZE]
  %end2 = add i64 %begin2, %size2
  %left = icmp ult i64 %begin, %end2
  %right = icmp ult i64 %begin2, %end
  %both = and i1 %left, %right
  %shared = or i1 %both, %twice
  br i1 %shared, label %no, label %apart
apart:
  br label %other
yes:
  ret ptr %x
no:
  ret ptr null
}

; The exception for a program that returned %code: raised by the Python function of the table.
define void @raise_status(ptr %t, i64 %code, ptr %status) {
start:
  %numbers = alloca [9 x ptr]
  store [9 x ptr] zeroinitializer, ptr %numbers
  %codenumber = call ptr @PyLong_FromLongLong(i64 %code)
  store ptr %codenumber, ptr %numbers
  %failed0 = icmp eq ptr %codenumber, null
  br i1 %failed0, label %clean, label %make
make:
  %k = phi i64 [ 0, %start ], [ %k1, %made ]
  %k1 = add i64 %k, 1
  %all = icmp eq i64 %k, 8
  br i1 %all, label %call, label %number
number:
  %v = at i64 %status[%k]
  %number0 = call ptr @PyLong_FromLongLong(i64 %v)
  %failed = icmp eq ptr %number0, null
  br i1 %failed, label %clean, label %made
made:
  put ptr %number0, %numbers[%k1]
  br label %make
call:
  %handler = get ptr %t[$ON_STATUS]
  %result = call ptr @PyObject_Vectorcall(ptr %handler, ptr %numbers, i64 9, ptr null)
  %raised = icmp eq ptr %result, null
  br i1 %raised, label %clean, label %silent
silent:
  call void @Py_DecRef(ptr %result)
  call void @PyErr_SetString(ptr @SystemError, ptr @no_error)
  br label %clean
clean:
  %c = phi i64 [ 0, %start ], [ 0, %number ], [ 0, %call ], [ 0, %silent ], [ %c1, %drop ]
  %c1 = add i64 %c, 1
  %cleaned = icmp eq i64 %c, 9
  br i1 %cleaned, label %end, label %drop
drop:
  %object = at ptr %numbers[%c]
  call void @Py_DecRef(ptr %object)
  br label %clean
end:
  ret void
}

; One container of the result: takes its children out of %values and puts itself in.
define i1 @build(ptr %t, ptr %op, ptr %values) {
start:
  %kind = get i64 %op[$BUILD_KIND]
  %n = get i64 %op[$BUILD_CHILDREN]
  %childoffset = get i64 %op[$BUILD_FIRST]
  %children = row %t[%childoffset]
  %keys = row %children[%n]
  %position = get i64 %op[$BUILD_VALUE]
  %place = row %values[%position]
  %function = get ptr %op[$BUILD_CALL]
  switch i64 %kind, label %none [ i64 $TUPLE, label %newtuple
                                  i64 $LIST, label %newlist
                                  i64 $DICT, label %newdict ]
none:
  call void @Py_IncRef(ptr @None)
  store ptr @None, ptr %place
  ret i1 true
newtuple:
  %tuple = call ptr @PyTuple_New(i64 %n)
  br label %made
newlist:
  %list = call ptr @PyList_New(i64 %n)
  br label %made
newdict:
  %dict = call ptr @PyDict_New()
  br label %made
made:
  %new = phi ptr [ %tuple, %newtuple ], [ %list, %newlist ], [ %dict, %newdict ]
  store ptr %new, ptr %place
  %failed = icmp eq ptr %new, null
  br i1 %failed, label %no, label %next
next:
  %k = phi i64 [ 0, %made ], [ %k1, %intuple ], [ %k1, %inlist ], [ %k1, %indict ]
  %k1 = add i64 %k, 1
  %all = icmp eq i64 %k, %n
  br i1 %all, label %full, label %child
child:
  %c = at i64 %children[%k]
  %from = row %values[%c]
  %x = load ptr, ptr %from
  switch i64 %kind, label %indict0 [ i64 $TUPLE, label %intuple
                                     i64 $LIST, label %inlist ]
intuple:
  store ptr null, ptr %from
  call i32 @PyTuple_SetItem(ptr %new, i64 %k, ptr %x)
  br label %next
inlist:
  store ptr null, ptr %from
  call i32 @PyList_SetItem(ptr %new, i64 %k, ptr %x)
  br label %next
indict0:
  %key = at ptr %keys[%k]
  %error = call i32 @PyDict_SetItem(ptr %new, ptr %key, ptr %x)
  %set = icmp eq i32 %error, 0
  br i1 %set, label %indict, label %no
indict:
  store ptr null, ptr %from
  call void @Py_DecRef(ptr %x)
  br label %next
full:
  %plain = icmp eq ptr %function, null
  br i1 %plain, label %yes, label %call
call:
  %spread = icmp eq i64 %kind, $TUPLE
  br i1 %spread, label %callmany, label %callone
callmany:
  %result1 = call ptr @PyObject_Call(ptr %function, ptr %new, ptr null)
  br label %called
callone:
  %result2 = call ptr @PyObject_CallOneArg(ptr %function, ptr %new)
  br label %called
called:
  %result = phi ptr [ %result1, %callmany ], [ %result2, %callone ]
  store ptr %result, ptr %place
  call void @Py_DecRef(ptr %new)
  %done = icmp ne ptr %result, null
  ret i1 %done
yes:
  ret i1 true
no:
  ret i1 false
}
