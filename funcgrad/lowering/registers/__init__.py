"""Loops and branches as machine code whose small values stay in registers.

A body whose values are small is straight-line code: every element of every value is a register, movement is a matter
of names, and loops and branches inside are loops and branches of the same function. Arrays that a loop carries and
changes in place, and the rows it reads and writes, stay in memory.
"""
