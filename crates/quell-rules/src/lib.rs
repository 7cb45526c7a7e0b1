//! The Quell rules file: parsing with exact positions, explanation, and scenario tests.
