//! The allocator of the program: dlmalloc in memory that is part of the program.
//!
//! The C library's allocator needs five system calls before the first allocation (brk(2), a random number), and most
//! calls of csalock never need more memory than the program has. That memory begins as zeros, so the program's file does
//! not contain it, and `src/start.c` provides its first pages together with other data.

#![expect(unsafe_code, reason = "the traits of allocators are unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlmalloc::{Allocator, Dlmalloc};

/// Size of the memory in the program, and of each further piece, in bytes.
const SIZE: usize = 64 * 1024;

/// Bytes by which the heap grows within that memory. dlmalloc writes to the end of what it has.
const STEP: usize = 16 * 1024;

/// The alignment of a piece of memory.
const PAGE: usize = 4096;

#[repr(align(16))]
struct Memory(UnsafeCell<[u8; SIZE]>);

// SAFETY: only the allocator uses the memory, and it has a lock.
unsafe impl Sync for Memory {}

// SAFETY: nothing else is in this section, whose name only tells the linker where to put it.
#[unsafe(link_section = ".bss.csalock_heap")]
static MEMORY: Memory = Memory(UnsafeCell::new([0; SIZE]));

/// The heap of the program.
pub struct Heap(Mutex<Dlmalloc<Pieces>>);

/// Where dlmalloc gets its memory from: the program, then the C library.
struct Pieces {
    /// Number of bytes of the program's memory that are in use.
    used: AtomicUsize,
}

impl Heap {
    /// Creates an empty heap. A program has at most one, because it has that memory once.
    pub const fn empty() -> Heap {
        let mut heap = Dlmalloc::new_with_allocator(Pieces { used: AtomicUsize::new(0) });
        heap.set_granularity(STEP);
        Heap(Mutex::new(heap))
    }

    fn lock(&self) -> MutexGuard<'_, Dlmalloc<Pieces>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: the memory of each piece is unused, and is never given back.
unsafe impl Allocator for Pieces {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let used = self.used.load(Ordering::Relaxed);
        if size <= SIZE - used {
            self.used.store(used + size, Ordering::Relaxed);
            // SAFETY: the piece lies in the memory. dlmalloc joins it with the piece before.
            return (unsafe { MEMORY.0.get().cast::<u8>().add(used) }, size, 0);
        }
        let size = size.max(SIZE);
        let piece = Layout::from_size_align(size, PAGE).map(|layout| {
            // SAFETY: the piece is not empty.
            unsafe { System.alloc(layout) }
        });
        (piece.unwrap_or(ptr::null_mut()), size, 0)
    }

    fn remap(&self, _piece: *mut u8, _size: usize, _new_size: usize, _can_move: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, _piece: *mut u8, _size: usize, _new_size: usize) -> bool {
        false
    }

    fn free(&self, _piece: *mut u8, _size: usize) -> bool {
        false
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        false
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

// SAFETY: dlmalloc keeps these promises, and the lock gives it to one thread at a time.
unsafe impl GlobalAlloc for Heap {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those of dlmalloc.
        unsafe { self.lock().malloc(layout.size(), layout.align()) }
    }

    #[inline(never)]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are those of dlmalloc.
        unsafe { self.lock().free(memory, layout.size(), layout.align()) }
    }

    #[inline(never)]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promises are those of dlmalloc.
        unsafe { self.lock().realloc(memory, layout.size(), layout.align(), size) }
    }
}
