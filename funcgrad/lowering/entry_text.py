"""The LLVM text behind native entries: ``@enter``, one ``METH_FASTCALL | METH_KEYWORDS`` function for all of them.

In: offsets of the fields of CPython's and NumPy's objects, and the layout of the tables. Out: text, the same in every
process. What a specialisation expects stands in its table (see `entry`), so that a new one needs no compilation.
``@call`` is the vectorcall function of objects that hold a builtin made of ``@enter``.

Invariants. *Matching* runs no Python code, takes no reference and raises nothing: under the GIL nothing moves until a
specialisation matches or all have failed. A field is read only after the exact type of its object was compared.
Dict lookups happen only in dicts whose keys are all exact strings, since other keys could run code. From the moment
of the match every leaf inside a container is held; leaves given directly are held by the caller (vectorcall), and all
leaves are held where the GIL is released. Every way out gives back the arena and the references.

The text is LLVM's, with three abbreviations (pointers are plain, offsets in bytes, ``$NAME`` is a number):

    %x = get T %p[$NAME]      load of a field          %x = at T %p[%i]      load of element %i
    put T %v, %p[%i]          store of element %i      %q = row %p[%i]       address of word %i

The functions of `hot` are those that every call goes through. They are worth LLVM's level 1 (26 ns a call less than
at level 0), which takes several times as long to compile; the others are `cold`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping

FUNCTIONS = (
    "PyContextVar_Get",
    "PyDict_GetItemWithError",
    "PyDict_New",
    "PyDict_Next",
    "PyDict_SetItem",
    "PyDict_Size",
    "PyErr_NoMemory",
    "PyErr_SetString",
    "PyEval_RestoreThread",
    "PyEval_SaveThread",
    "PyList_New",
    "PyList_SetItem",
    "PyLong_AsLongLongAndOverflow",
    "PyLong_FromLongLong",
    "PyMem_RawMalloc",
    "PyObject_Call",
    "PyObject_CallOneArg",
    "PyObject_Vectorcall",
    "PyTuple_New",
    "PyTuple_SetItem",
    "PyUnicode_Compare",
    "Py_DecRef",
    "Py_IncRef",
)
"""What the text calls in CPython, beside ``PyArray_NewFromDescr``."""

DECLARATIONS = """
@ndarray = external global i8
@Array = external global i8
@int = external global i8
@str = external global i8
@True = external global i8
@False = external global i8
@None = external global i8
@SystemError = external global i8
@TypeError = external global i8
@builtin = external global i8
@no_error = private constant [45 x i8] c"the handler of a program's status must raise\\00"
@no_target = private constant [32 x i8] c"this object has no native entry\\00"
declare i32 @PyContextVar_Get(ptr, ptr, ptr)
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare ptr @PyDict_New()
declare i32 @PyDict_Next(ptr, ptr, ptr, ptr)
declare i32 @PyDict_SetItem(ptr, ptr, ptr)
declare i64 @PyDict_Size(ptr)
declare ptr @PyErr_NoMemory()
declare void @PyErr_SetString(ptr, ptr)
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyEval_SaveThread()
declare ptr @PyList_New(i64)
declare i32 @PyList_SetItem(ptr, i64, ptr)
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyMem_RawMalloc(i64)
declare ptr @PyObject_Call(ptr, ptr, ptr)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare i32 @PyUnicode_Compare(ptr, ptr)
declare void @Py_DecRef(ptr)
declare void @Py_IncRef(ptr)
declare ptr @PyArray_NewFromDescr(ptr, ptr, i32, ptr, ptr, ptr, i32, ptr)
"""

# Values of an exact dict with n string keys, into %dst in the order of %keys. %order is the order of insertion that
# the table was made from: where it is met, comparing pointers is enough.
MATCH_DICT = """
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
"""

# An exact array of the row's dtype and shape, C-contiguous and aligned.
MATCH_ARRAY = """
define internal i1 @match_array(ptr %t, ptr %row, ptr %x) {
start:
  %nd = get i32 %x[$ARRAY_NDIM]
  %ndim = get i64 %row[$LEAF_NDIM]
  %n = zext i32 %nd to i64
  %axes = icmp eq i64 %n, %ndim
  br i1 %axes, label %flags, label %no
flags:
  %f = get i32 %x[$ARRAY_FLAGS]
  %need = and i32 %f, $ALIGNED_CONTIGUOUS
  %flat = icmp eq i32 %need, $ALIGNED_CONTIGUOUS
  br i1 %flat, label %dtype, label %no
dtype:
  %descr = get ptr %x[$ARRAY_DESCR]
  %want = get ptr %row[$LEAF_DESCR]
  %same = icmp eq ptr %descr, %want
  br i1 %same, label %shape, label %present
present:
  %null = icmp eq ptr %descr, null
  br i1 %null, label %no, label %number
number:
  %num = get i32 %descr[$DESCR_NUMBER]
  %num64 = sext i32 %num to i64
  %wantnum = get i64 %row[$LEAF_NUMBER]
  %samenum = icmp eq i64 %num64, %wantnum
  br i1 %samenum, label %order, label %no
order:
  %byteorder = get i8 %descr[$DESCR_ORDER]
  %swapped = icmp eq i8 %byteorder, $SWAPPED
  %metadata = get ptr %descr[$DESCR_METADATA]
  %plain = icmp eq ptr %metadata, null
  %native = xor i1 %swapped, true
  %good = and i1 %plain, %native
  br i1 %good, label %shape, label %no
shape:
  %offset = get i64 %row[$LEAF_SHAPE]
  %lengths = row %t[%offset]
  %dims = get ptr %x[$ARRAY_SHAPE]
  br label %axis
axis:
  %k = phi i64 [ 0, %shape ], [ %k1, %length ]
  %done = icmp eq i64 %k, %ndim
  br i1 %done, label %yes, label %length
length:
  %have = at i64 %dims[%k]
  %expected = at i64 %lengths[%k]
  %k1 = add i64 %k, 1
  %equal = icmp eq i64 %have, %expected
  br i1 %equal, label %axis, label %no
yes:
  ret i1 true
no:
  ret i1 false
}
"""

# An argument that may be overwritten: an array that owns its writeable memory, was never exported as a buffer, and
# shares nothing with another argument.
MATCH_DONATED = """
define i1 @match_donated(ptr %t, i64 %l, ptr %items, ptr %inputs) {
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
  %need = and i32 %f, $OWNED_WRITEABLE
  %owned = icmp eq i32 %need, $OWNED_WRITEABLE
  %exported = get ptr %x[$ARRAY_BUFFER]
  %private = icmp eq ptr %exported, null
  %good = and i1 %owned, %private
  br i1 %good, label %range, label %no
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
  ret i1 true
no:
  ret i1 false
}
"""

# One call against one table: objects of the argument trees into %items, data pointers of the leaves into %inputs.
MATCH = """
define internal i1 @match(ptr %t, ptr %args, i64 %nargs, ptr %kwnames, ptr %items, ptr %inputs, ptr %spill) {
start:
  %overflow = alloca i32
  %wantargs = get i64 %t[$ARGS]
  %sameargs = icmp eq i64 %nargs, %wantargs
  br i1 %sameargs, label %keywords, label %no
keywords:
  %nkw = get i64 %t[$KEYWORDS]
  %nokw = icmp eq ptr %kwnames, null
  br i1 %nokw, label %nonames, label %somenames
nonames:
  %none = icmp eq i64 %nkw, 0
  br i1 %none, label %positional, label %no
somenames:
  %given = get i64 %kwnames[$SIZE]
  %samekw = icmp eq i64 %given, %nkw
  br i1 %samekw, label %positional, label %no
positional:
  %a = phi i64 [ 0, %nonames ], [ 0, %somenames ], [ %a1, %copy ]
  %copied = icmp eq i64 %a, %nargs
  br i1 %copied, label %named, label %copy
copy:
  %arg = at ptr %args[%a]
  put ptr %arg, %items[%a]
  %a1 = add i64 %a, 1
  br label %positional
named:
  %nameoffset = get i64 %t[$NAMES]
  %names = row %t[%nameoffset]
  %values = row %args[%nargs]
  %slots = row %items[%nargs]
  br label %name
name:
  %w = phi i64 [ 0, %named ], [ %w1, %setname ]
  %w1 = add i64 %w, 1
  %allnames = icmp eq i64 %w, %nkw
  br i1 %allnames, label %trees, label %guess
guess:
  %word = at ptr %names[%w]
  %words = row %kwnames[$TUPLE_WORDS]
  %first = at ptr %words[%w]
  %guessed = icmp eq ptr %word, %first
  br i1 %guessed, label %setname, label %findname
findname:
  %q = phi i64 [ 0, %guess ], [ %q1, %notthis ], [ %q1, %notequal ]
  %q1 = add i64 %q, 1
  %nowhere = icmp eq i64 %q, %nkw
  br i1 %nowhere, label %no, label %candidate
candidate:
  %c = at ptr %words[%q]
  %identical = icmp eq ptr %c, %word
  br i1 %identical, label %setname, label %notidentical
notidentical:
  %ctype = get ptr %c[$TYPE]
  %cstr = icmp eq ptr %ctype, @str
  br i1 %cstr, label %notequal, label %notthis
notthis:
  br label %findname
notequal:
  %difference = call i32 @PyUnicode_Compare(ptr %c, ptr %word)
  %equal = icmp eq i32 %difference, 0
  br i1 %equal, label %setname, label %findname
setname:
  %from = phi i64 [ %w, %guess ], [ %q, %candidate ], [ %q, %notequal ]
  %namedvalue = at ptr %values[%from]
  put ptr %namedvalue, %slots[%w]
  br label %name

trees:
  %nodes = get i64 %t[$NODE_COUNT]
  %nodeoffset = get i64 %t[$NODES]
  %node0 = row %t[%nodeoffset]
  br label %node
node:
  %o = phi i64 [ 0, %trees ], [ %o1, %nextnode ]
  %op = phi ptr [ %node0, %trees ], [ %op1, %nextnode ]
  %o1 = add i64 %o, 1
  %op1 = row %op[$NODE_WORDS]
  %allnodes = icmp eq i64 %o, %nodes
  br i1 %allnodes, label %leaves, label %container
container:
  %kind = get i64 %op[$NODE_KIND]
  %src = get i64 %op[$NODE_ITEM]
  %x = at ptr %items[%src]
  %wanted = get ptr %op[$NODE_TYPE]
  %exactly = icmp eq i64 %kind, $IS
  br i1 %exactly, label %identity, label %typed
identity:
  %is = icmp eq ptr %x, %wanted
  br i1 %is, label %nextnode, label %no
typed:
  %type = get ptr %x[$TYPE]
  %sametype = icmp eq ptr %type, %wanted
  br i1 %sametype, label %children, label %no
children:
  %n = get i64 %op[$NODE_CHILDREN]
  %dstindex = get i64 %op[$NODE_FIRST]
  %dst = row %items[%dstindex]
  %isdict = icmp eq i64 %kind, $DICT
  br i1 %isdict, label %dict, label %sequence
dict:
  %keyoffset = get i64 %op[$NODE_KEYS]
  %keys = row %t[%keyoffset]
  %order = row %keys[%n]
  %indict = call i1 @match_dict(ptr %x, i64 %n, ptr %keys, ptr %order, ptr %dst)
  br i1 %indict, label %nextnode, label %no
sequence:
  %size = get i64 %x[$SIZE]
  %samesize = icmp eq i64 %size, %n
  br i1 %samesize, label %which, label %no
which:
  %islist = icmp eq i64 %kind, $LIST
  br i1 %islist, label %list, label %tuple
list:
  %listitems = get ptr %x[$LIST_ITEMS]
  br label %elements
tuple:
  %tupleitems = row %x[$TUPLE_WORDS]
  br label %elements
elements:
  %source = phi ptr [ %listitems, %list ], [ %tupleitems, %tuple ]
  br label %element
element:
  %e = phi i64 [ 0, %elements ], [ %e1, %take ]
  %allelements = icmp eq i64 %e, %n
  br i1 %allelements, label %nextnode, label %take
take:
  %child = at ptr %source[%e]
  put ptr %child, %dst[%e]
  %e1 = add i64 %e, 1
  br label %element
nextnode:
  br label %node

leaves:
  %leafcount = get i64 %t[$LEAF_COUNT]
  %leafoffset = get i64 %t[$LEAVES]
  %leaf0 = row %t[%leafoffset]
  br label %leaf
leaf:
  %l = phi i64 [ 0, %leaves ], [ %l1, %setleaf ]
  %row = phi ptr [ %leaf0, %leaves ], [ %row1, %setleaf ]
  %l1 = add i64 %l, 1
  %row1 = row %row[$LEAF_WORDS]
  %allleaves = icmp eq i64 %l, %leafcount
  br i1 %allleaves, label %donations, label %object
object:
  %item = get i64 %row[$LEAF_ITEM]
  %y = at ptr %items[%item]
  %leafkind = get i64 %row[$LEAF_KIND]
  %leaftype = get ptr %y[$TYPE]
  %plain = icmp eq ptr %leaftype, @ndarray
  %ours = icmp eq ptr %leaftype, @Array
  %array = or i1 %plain, %ours
  %strong = icmp ult i64 %leafkind, $WEAK
  %asarray = and i1 %array, %strong
  br i1 %asarray, label %anarray, label %notarray
anarray:
  %fits = call i1 @match_array(ptr %t, ptr %row, ptr %y)
  br i1 %fits, label %arraydata, label %no
arraydata:
  %data = get ptr %y[$ARRAY_DATA]
  br label %setleaf
notarray:
  %scalar = get ptr %row[$LEAF_SCALAR]
  %isscalar = icmp eq ptr %leaftype, %scalar
  br i1 %isscalar, label %scalardata, label %spilled
scalardata:
  %value = getelementptr i8, ptr %y, i64 $VALUE
  br label %setleaf
spilled:
  %slot = row %spill[%l]
  switch i64 %leafkind, label %no [ i64 $WEAK_INT, label %integer
                                    i64 $BOOL, label %boolean ]
integer:
  %isint = icmp eq ptr %leaftype, @int
  br i1 %isint, label %convert, label %no
convert:
  %int = call i64 @PyLong_AsLongLongAndOverflow(ptr %y, ptr %overflow)
  store i64 %int, ptr %slot
  %over = load i32, ptr %overflow
  %inrange = icmp eq i32 %over, 0
  br i1 %inrange, label %setleaf, label %no
boolean:
  %true = icmp eq ptr %y, @True
  %false = icmp eq ptr %y, @False
  %bit = zext i1 %true to i8
  store i8 %bit, ptr %slot
  %isbool = or i1 %true, %false
  br i1 %isbool, label %setleaf, label %no
setleaf:
  %pointer = phi ptr [ %data, %arraydata ], [ %value, %scalardata ], [ %slot, %convert ], [ %slot, %boolean ]
  put ptr %pointer, %inputs[%l]
  br label %leaf

donations:
  %donated = get i64 %t[$DONATED_COUNT]
  %donatedoffset = get i64 %t[$DONATED]
  %donatedleaves = row %t[%donatedoffset]
  br label %donation
donation:
  %d = phi i64 [ 0, %donations ], [ %d1, %donate ]
  %d1 = add i64 %d, 1
  %alldonated = icmp eq i64 %d, %donated
  br i1 %alldonated, label %yes, label %donate
donate:
  %given0 = at i64 %donatedleaves[%d]
  %eligible = call i1 @match_donated(ptr %t, i64 %given0, ptr %items, ptr %inputs)
  br i1 %eligible, label %donation, label %no
yes:
  ret i1 true
no:
  ret i1 false
}
"""

# References of the leaves: taken (%take) or given back.
HOLD = """
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
"""

# Arenas of an executable: a list of free blocks, changed under the GIL. A block keeps what malloc returned one word
# before its aligned start, and the next free block two words before.
ARENA = """
define ptr @take_arena(ptr %pool) {
start:
  %free = get ptr %pool[0]
  %empty = icmp eq ptr %free, null
  br i1 %empty, label %make, label %reuse
reuse:
  %second = getelementptr i8, ptr %free, i64 -16
  %next = load ptr, ptr %second
  store ptr %next, ptr %pool
  ret ptr %free
make:
  %size = get i64 %pool[8]
  %padded = add i64 %size, 128
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
  ret ptr %block
}

define void @give_arena(ptr %pool, ptr %block) {
  %free = load ptr, ptr %pool
  %link = getelementptr i8, ptr %block, i64 -16
  store ptr %free, ptr %link
  store ptr %block, ptr %pool
  ret void
}
"""

# The exception for a program that returned %code: raised by the Python function of the table.
RAISE_STATUS = """
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
"""

# One container of the result: takes its children out of %values and puts itself in.
BUILD = """
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
"""

# The matched call: results allocated, the program run, the result tree built. Null with an exception on failure.
RUN = """
define internal ptr @run(ptr %t, ptr %items, ptr %pointers, ptr %values) {
start:
  %status = alloca [8 x i64], align 64
  store [8 x i64] zeroinitializer, ptr %status
  %leafcount = get i64 %t[$LEAF_COUNT]
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
  %inputs = row %pointers[2]
  %const0 = row %inputs[%leafcount]
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
  %out0 = row %const0[%constcount]
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
  %item = get i64 %row[$OUT_ITEM]
  %fresh = icmp slt i64 %item, 0
  br i1 %fresh, label %allocate, label %donated
donated:
  %given = at ptr %items[%item]
  call void @Py_IncRef(ptr %given)
  br label %setout
allocate:
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
  %object = phi ptr [ %given, %donated ], [ %new, %allocate ]
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
  %code = phi i64 [ %code1, %callheld ], [ %code2, %callfree ]
  br i1 %noarena, label %release0, label %give
give:
  call void @give_arena(ptr %pool, ptr %block)
  br label %release0
release0:
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
"""

# All tables in turn. 1 (no address) where none matches.
ATTEMPT = """
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
  %inputs = row %pointers[2]
  %count = get i64 %head[$TABLE_COUNT]
  %tables = row %head[$HEAD_WORDS]
  br label %next
next:
  %i = phi i64 [ 0, %start ], [ %i1, %try ]
  %i1 = add i64 %i, 1
  %done = icmp eq i64 %i, %count
  br i1 %done, label %none, label %try
try:
  %t = at ptr %tables[%i]
  %hit = call i1 @match(ptr %t, ptr %args, i64 %nargs, ptr %kwnames, ptr %items, ptr %inputs, ptr %spill)
  br i1 %hit, label %found, label %next
found:
  %result = call ptr @run(ptr %t, ptr %items, ptr %pointers, ptr %values)
  ret ptr %result
none:
  ret ptr inttoptr (i64 1 to ptr)
}
"""

ENTER = """
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
"""

# The vectorcall function of an object whose slot holds a builtin made of @enter (or anything that can be called).
CALL = """
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
"""

_HOT = (MATCH_ARRAY, MATCH, HOLD, RUN, ATTEMPT, ENTER, CALL)
_COLD = (MATCH_DICT, MATCH_DONATED, ARENA, RAISE_STATUS, BUILD)
_GET = re.compile(r"(%\w+) = get (\w+) (%\w+)\[(-?\w+)\]")
_AT = re.compile(r"(%\w+) = at (\w+) (%\w+)\[([%\w]+)\]")
_PUT = re.compile(r"put (\w+) ([%\w]+), (%\w+)\[([%\w]+)\]")
_ROW = re.compile(r"= row (%\w+)\[([%\w]+)\]")
_NUMBER = re.compile(r"\$(\w+)")


_DEFINED = re.compile(r"define (\w+ @\w+\([^)]*\))")


def hot(numbers: Mapping[str, int]) -> str:
    """The module of the functions that every call goes through, without header; `numbers` gives every ``$NAME``."""
    return _module(_HOT, _COLD, numbers)


def cold(numbers: Mapping[str, int]) -> str:
    """The module of the others."""
    return _module(_COLD, (), numbers)


def _module(functions: Iterable[str], elsewhere: Iterable[str], numbers: Mapping[str, int]) -> str:
    declarations = [f"declare {m}\n" for text in elsewhere for m in _DEFINED.findall(text)]
    text = "".join([DECLARATIONS, *declarations, *functions])
    text = _NUMBER.sub(lambda m: str(numbers[m[1]]), text)
    text = _GET.sub(r"\1.at = getelementptr i8, ptr \3, i64 \4\n  \1 = load \2, ptr \1.at", text)
    text = _AT.sub(r"\1.at = getelementptr \2, ptr \3, i64 \4\n  \1 = load \2, ptr \1.at", text)
    text = _ROW.sub(r"= getelementptr i64, ptr \1, i64 \2", text)
    count = itertools.count()
    put = "%put.{0} = getelementptr {1}, ptr {3}, i64 {4}\n  store {1} {2}, ptr %put.{0}"
    return _PUT.sub(lambda m: put.format(next(count), *m.groups()), text)
