//! The tests of the rules file, in one program.

mod examples;
mod subject;
