; Does a call fit a specialisation? No Python code runs here, no reference is taken, nothing is raised, unless the
; specialisation has registered nodes: these are opened by Python functions, and every item is owned meanwhile.
; The abbreviations are explained in entry_text.py.

; An exact array of the row's dtype and shape, C-contiguous and aligned.
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

; One call against one table: objects of the argument trees into %items, data pointers of the leaves into %pointers.
; %owned counts the items, from the first on, of which the caller has to give back a reference.
define internal i1 @match(ptr %t, ptr %args, i64 %nargs, ptr %kwnames, ptr %items, ptr %pointers, ptr %spill,
                          ptr %owned) {
start:
  store i64 0, ptr %owned
  %flags = get i64 %t[$FLAGS]
  %owning0 = and i64 %flags, $OWNING
  %owning = icmp ne i64 %owning0, 0
  %overflow = alloca i32
  %leafslot = get i64 %t[$LEAF_SLOT]
  %inputs = row %pointers[%leafslot]
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
  br i1 %allnames, label %roots, label %guess
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

roots:
  %rootcount = add i64 %nargs, %nkw
  br i1 %owning, label %ownroots, label %trees
ownroots:
  call void @own(ptr %items, ptr %owned, i64 %rootcount)
  br label %trees

trees:
  %nodes = get i64 %t[$NODE_COUNT]
  %nodeoffset = get i64 %t[$NODES]
  %node0 = row %t[%nodeoffset]
  br label %node
node:
  %o = phi i64 [ 0, %trees ], [ %o1, %nextnode ], [ %o1, %owntaken ]
  %op = phi ptr [ %node0, %trees ], [ %op1, %nextnode ], [ %op1, %owntaken ]
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
  br i1 %isdict, label %dict, label %notdict
notdict:
  %isopened = icmp eq i64 %kind, $OPENED
  br i1 %isopened, label %opened, label %sequence
opened:
  %function = get ptr %op[$NODE_KEYS]
  %opening = call ptr @opened(ptr %function, ptr %x, i64 %n)
  %closed = icmp eq ptr %opening, null
  br i1 %closed, label %no, label %list
dict:
  %keyoffset = get i64 %op[$NODE_KEYS]
  %keys = row %t[%keyoffset]
  %order = row %keys[%n]
  %indict = call i1 @match_dict(ptr %x, i64 %n, ptr %keys, ptr %order, ptr %dst)
  br i1 %indict, label %filled, label %no
sequence:
  %size = get i64 %x[$SIZE]
  %samesize = icmp eq i64 %size, %n
  br i1 %samesize, label %which, label %no
which:
  %islist = icmp eq i64 %kind, $LIST
  br i1 %islist, label %list, label %tuple
list:
  %aslist = phi ptr [ %x, %which ], [ %opening, %opened ]
  %fresh = phi ptr [ null, %which ], [ %opening, %opened ]
  %listitems = get ptr %aslist[$LIST_ITEMS]
  br label %elements
tuple:
  %tupleitems = row %x[$TUPLE_WORDS]
  br label %elements
elements:
  %source = phi ptr [ %listitems, %list ], [ %tupleitems, %tuple ]
  %temporary = phi ptr [ %fresh, %list ], [ null, %tuple ]
  br label %element
element:
  %e = phi i64 [ 0, %elements ], [ %e1, %take ]
  %allelements = icmp eq i64 %e, %n
  br i1 %allelements, label %filled, label %take
take:
  %child = at ptr %source[%e]
  put ptr %child, %dst[%e]
  %e1 = add i64 %e, 1
  br label %element
filled:
  %unused = phi ptr [ null, %dict ], [ %temporary, %element ]
  br i1 %owning, label %owntaken, label %nextnode
owntaken:
  %ends = add i64 %dstindex, %n
  call void @own(ptr %items, ptr %owned, i64 %ends)
  call void @Py_DecRef(ptr %unused)
  br label %node
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
  br i1 %allleaves, label %yes, label %object
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

yes:
  ret i1 true
no:
  ret i1 false
}
