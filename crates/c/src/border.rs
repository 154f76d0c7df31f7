//! Conversions at the language border: arrays in and out, errors out, no panics.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{BAD_POINTER, BAD_PROBLEM, BUG, Error, Item, NONE, OK, Problem};

/// A status other than [`OK`], and the error that says why.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: i32,
    first: u64,
    second: u64,
    time: u64,
    message: String,
}

impl Failure {
    pub(crate) fn new(status: i32, message: impl Display) -> Failure {
        Failure { status, first: NONE, second: NONE, time: NONE, message: message.to_string() }
    }

    /// Names the items that are to blame.
    pub(crate) fn of(self, first: u64, second: u64) -> Failure {
        Failure { first, second, ..self }
    }

    /// Says when.
    pub(crate) fn at(self, time: u64) -> Failure {
        Failure { time, ..self }
    }

    fn write(&self) -> Error {
        let mut message = [0; 256];
        // The last byte stays zero, and no character is cut in two.
        let most = self.message.len().min(message.len() - 1);
        let end = (0..=most).rev().find(|&end| self.message.is_char_boundary(end)).unwrap_or(0);
        message[..end].copy_from_slice(&self.message.as_bytes()[..end]);
        Error { first: self.first, second: self.second, time: self.time, message }
    }
}

/// Runs the body of a function of the header, and returns its status. A panic within is a status, too.
///
/// # Safety
/// `error` is NULL, or an error may be written there.
pub(crate) unsafe fn guard(error: *mut Error, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    // Whatever a panic leaves half done is dropped with the body: nothing outlives a call.
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        Err(Failure::new(BUG, format_args!("memplan panicked: {}", text_of_panic(&*panic))))
    });
    let failure = result.err().unwrap_or_else(|| Failure::new(OK, ""));
    if !error.is_null() && error.is_aligned() {
        // SAFETY: the caller says so.
        unsafe { error.write(failure.write()) };
    }
    failure.status
}

fn text_of_panic(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it does not say why")
}

/// The value behind a pointer that must not be NULL.
///
/// # Safety
/// `pointer` is NULL, or points to a `T` that nobody writes during `'a`.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    check_pointer(pointer, name)?;
    // SAFETY: it is neither NULL nor misaligned, and the caller says the rest.
    Ok(unsafe { &*pointer })
}

/// An array of `len` elements.
///
/// # Safety
/// `pointer` is NULL, or points to so many `T`s that nobody writes during `'a`.
pub(crate) unsafe fn array<'a, T>(pointer: *const T, len: usize, name: &str) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    check_pointer(pointer, name)?;
    check_len::<T>(len, name)?;
    // SAFETY: it is neither NULL nor misaligned nor larger than an object can be, and the caller says the rest.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// An array that may be absent.
///
/// # Safety
/// As [`array`].
pub(crate) unsafe fn optional<'a, T>(
    pointer: *const T,
    len: usize,
    name: &str,
) -> Result<Option<&'a [T]>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller says so.
    unsafe { array(pointer, len, name) }.map(Some)
}

/// Whether there can be a value where something is to be written.
pub(crate) fn check_pointer<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::new(BAD_POINTER, format_args!("{name} is NULL")));
    }
    if !pointer.is_aligned() {
        return Err(Failure::new(BAD_POINTER, format_args!("{name} is not aligned")));
    }
    Ok(())
}

fn check_len<T>(len: usize, name: &str) -> Result<(), Failure> {
    match len.checked_mul(size_of::<T>()) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
        _ => {
            Err(Failure::new(BAD_POINTER, format_args!("{name} has {len} elements, more than memory holds")))
        }
    }
}

/// A problem, with arrays in place of pointers.
pub(crate) struct Posed<'a> {
    pub(crate) items: &'a [Item],
    fixed: Option<&'a [u64]>,
    groups: Option<&'a [u64]>,
    pub(crate) capacity: Option<u64>,
}

impl<'a> Posed<'a> {
    /// # Safety
    /// `problem` is NULL, or points to a problem whose pointers are NULL or point to arrays of `n_items` elements. Nobody
    /// writes them during `'a`.
    pub(crate) unsafe fn read(problem: *const Problem) -> Result<Posed<'a>, Failure> {
        // SAFETY: the caller says so of all of these.
        let (items, fixed, groups, capacity) = unsafe {
            let &Problem { items, n_items, fixed, groups, capacity } = reference(problem, "problem")?;
            let items = array(items, n_items, "items")?;
            (items, optional(fixed, n_items, "fixed")?, optional(groups, n_items, "groups")?, capacity)
        };
        let posed = Posed { items, fixed, groups, capacity: (capacity > 0).then_some(capacity) };
        for item in 0..items.len() {
            let first = posed.group(item);
            if first > item || posed.group(first) != first {
                let what =
                    format_args!("item {item} is in the group of {first}, which is not the first of a group");
                return Err(Failure::new(BAD_PROBLEM, what).of(item as u64, first as u64));
            }
        }
        Ok(posed)
    }

    /// The only offset that an item may have.
    pub(crate) fn fixed(&self, item: usize) -> Option<u64> {
        self.fixed.map(|fixed| fixed[item]).filter(|&offset| offset != NONE)
    }

    /// The first item of an item's group. A number of no item counts as one beyond all of them.
    pub(crate) fn group(&self, item: usize) -> usize {
        self.groups.map_or(item, |groups| usize::try_from(groups[item]).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error() -> Error {
        Error { first: 0, second: 0, time: 0, message: [1; 256] }
    }

    #[track_caller]
    fn message(error: &Error) -> &str {
        let end = error.message.iter().position(|&byte| byte == 0).expect("messages end with a zero");
        std::str::from_utf8(&error.message[..end]).expect("messages are text")
    }

    #[test]
    fn panics_become_a_status() {
        let mut error = error();
        // SAFETY: the error is there.
        let status = unsafe { guard(&mut error, || panic!("item {} is lost", 7)) };
        assert_eq!((status, message(&error)), (BUG, "memplan panicked: item 7 is lost"));
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { guard(std::ptr::null_mut(), || panic!("nobody hears it")) }, BUG);
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let mut error = error();
        let failure = Failure::new(BAD_PROBLEM, "é".repeat(200)).of(3, NONE).at(5);
        // SAFETY: the error is there.
        unsafe { guard(&mut error, || Err(failure)) };
        assert_eq!((message(&error), error.first, error.second, error.time), (&*"é".repeat(127), 3, NONE, 5));
    }
}
