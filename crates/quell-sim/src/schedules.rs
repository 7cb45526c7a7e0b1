//! Schedules: faults made by hand, each at the place where it hurts most.

use crate::setup::Setup;
use crate::world::World;

/// A schedule made by hand.
#[derive(Clone, Copy)]
pub struct Schedule {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Changes the numbers of the run.
    pub prepare: fn(&mut Setup),
    /// Plays it.
    pub play: fn(&mut World),
}

impl std::fmt::Debug for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Every schedule.
pub const SCHEDULES: &[Schedule] = &[];
