//! Short list: a list that nearly always has one item, which it stores without an allocation.
//!
//! `SmallVec` does the same with more code, but fixes the lifetimes of its items: a set of charges
//! could no longer be borrowed for a shorter time than its rules are in force.

use alloc::vec::Vec;
use core::mem;
use core::slice;

/// Some items, in order.
#[derive(Clone, Debug)]
pub(crate) enum ShortList<T> {
    One(T),
    /// Any number, including none or one.
    Many(Vec<T>),
}

impl<T> ShortList<T> {
    pub(crate) const fn new() -> Self {
        Self::Many(Vec::new())
    }

    // A call would copy the item, about 200 bytes, once more.
    #[inline(always)]
    pub(crate) fn push(&mut self, item: T) {
        match self {
            Self::Many(many) if many.is_empty() => *self = Self::One(item),
            Self::Many(many) => many.push(item),
            Self::One(_) => {
                let mut many = mem::take(self).into_vec();
                many.push(item);
                *self = Self::Many(many);
            }
        }
    }

    pub(crate) const fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => slice::from_ref(one),
            Self::Many(many) => many.as_slice(),
        }
    }

    pub(crate) fn get_mut(&mut self, place: usize) -> Option<&mut T> {
        match self {
            Self::One(one) => Some(one).filter(|_| place == 0),
            Self::Many(many) => many.get_mut(place),
        }
    }

    pub(crate) fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => Vec::from([one]),
            Self::Many(many) => many,
        }
    }
}

impl<T> Default for ShortList<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_items_in_order_however_many_there_are() {
        let mut list = ShortList::new();
        let mut all = Vec::new();
        for item in 0..5 {
            assert_eq!(list.as_slice(), all);
            assert_eq!(list.clone().into_vec(), all);
            assert_eq!(list.get_mut(item + 1), None);
            assert_eq!(list.get_mut(item / 2).copied(), all.get(item / 2).copied());
            list.push(item);
            all.push(item);
        }
    }
}
