//! Evaluates an expression as far as members have answered.
//!
//! As in CEL, `||` and `&&` are decided by one side where that suffices, even if the other side failed: `failed || true` is true, and
//! `failed && false` is false. `!` and `==` of a failed operand fail. So a member that fails never turns a denial into an admission.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Expression, Node};

/// What a member answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberAnswer {
    /// It admits the request, or not.
    Admits(bool),
    /// It gave no verdict.
    Failed,
}

/// The answers of the members that were asked, by their names.
pub type Answers<'e> = BTreeMap<&'e str, MemberAnswer>;

/// How far an evaluation has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State<'e> {
    /// The expression is true or false.
    Decided(bool),
    /// It cannot be decided, because this member failed.
    Failed(&'e str),
    /// These members must be asked, whatever the other members say.
    Needs(BTreeSet<&'e str>),
}

impl Expression {
    /// How far the evaluation comes with these answers. Members are needed from left to right: the right side of `||` and `&&` only where
    /// the left one does not decide.
    pub fn evaluate<'e>(&'e self, answers: &Answers<'e>) -> State<'e> {
        evaluate(&self.0, answers)
    }
}

fn evaluate<'e>(node: &'e Node, answers: &Answers<'e>) -> State<'e> {
    match node {
        Node::Literal(value) => State::Decided(*value),
        Node::Member(name) => match answers.get(name.as_str()) {
            Some(MemberAnswer::Admits(admits)) => State::Decided(*admits),
            Some(MemberAnswer::Failed) => State::Failed(name),
            None => State::Needs(BTreeSet::from([name.as_str()])),
        },
        Node::Not(inner) => match evaluate(inner, answers) {
            State::Decided(value) => State::Decided(!value),
            other => other,
        },
        Node::And(left, right) => short_circuit(left, right, false, answers),
        Node::Or(left, right) => short_circuit(left, right, true, answers),
        Node::Equal(left, right) => match (evaluate(left, answers), evaluate(right, answers)) {
            (State::Decided(left), State::Decided(right)) => State::Decided(left == right),
            (State::Failed(member), _) | (_, State::Failed(member)) => State::Failed(member),
            (State::Needs(mut left), State::Needs(right)) => {
                left.extend(right);
                State::Needs(left)
            }
            (needs @ State::Needs(_), _) | (_, needs @ State::Needs(_)) => needs,
        },
    }
}

/// `&&` and `||`: one side alone decides if its value is `deciding`.
fn short_circuit<'e>(left: &'e Node, right: &'e Node, deciding: bool, answers: &Answers<'e>) -> State<'e> {
    let left = evaluate(left, answers);
    match left {
        State::Needs(_) => left,
        State::Decided(value) if value == deciding => left,
        State::Decided(_) => evaluate(right, answers),
        State::Failed(_) => match evaluate(right, answers) {
            right @ State::Needs(_) => right,
            State::Decided(value) if value == deciding => State::Decided(value),
            State::Decided(_) | State::Failed(_) => left,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBERS: [&str; 4] = ["a", "b", "c", "d"];

    /// Asks members until the expression is decided: `t`, `f` and `!` in `answers` admit, deny and fail. Returns the result, and the
    /// members that were asked in each round.
    fn run(text: &str, answers: &str) -> (String, Vec<String>) {
        let expression = Expression::parse(text, MEMBERS).expect(text);
        let mut known = Answers::new();
        let mut rounds = Vec::new();
        loop {
            let needed = match expression.evaluate(&known) {
                State::Decided(value) => return (value.to_string(), rounds),
                State::Failed(member) => return (format!("{member} failed"), rounds),
                State::Needs(needed) => needed,
            };
            rounds.push(needed.iter().copied().collect());
            for name in needed {
                let place = MEMBERS.iter().position(|member| *member == name).expect("a member");
                let answer = match answers.as_bytes()[place] {
                    b't' => MemberAnswer::Admits(true),
                    b'f' => MemberAnswer::Admits(false),
                    _ => MemberAnswer::Failed,
                };
                assert!(known.insert(MEMBERS[place], answer).is_none(), "{name} is asked once");
            }
        }
    }

    #[test]
    fn members_are_asked_only_where_the_expression_needs_them() {
        for (text, answers, result, rounds) in [
            ("a()", "t", "true", "a"),
            ("!a()", "t", "false", "a"),
            ("a() && b()", "ft", "false", "a"),
            ("a() && b()", "tt", "true", "a b"),
            ("a() || b()", "tf", "true", "a"),
            ("a() || b()", "ft", "true", "a b"),
            ("a() && (b() || !c())", "tff", "true", "a b c"),
            ("a() || a()", "f", "false", "a"),
            ("true || a()", "f", "true", ""),
            ("a() == b()", "ff", "true", "ab"),
            ("(a() || c()) != b()", "fft", "true", "ab c"),
            ("(a() == b()) && (c() == d())", "ttff", "true", "ab cd"),
        ] {
            assert_eq!(
                run(text, answers),
                (result.to_owned(), rounds.split_whitespace().map(str::to_owned).collect()),
                "{text}"
            );
        }
    }

    #[test]
    fn a_failure_counts_where_the_others_do_not_decide_and_is_never_turned_into_an_admission() {
        for (text, answers, result) in [
            ("a()", "!", "a failed"),
            ("!a()", "!", "a failed"),
            ("a() || b()", "!t", "true"),
            ("a() || b()", "!f", "a failed"),
            ("b() || a()", "!t", "true"),
            ("a() && b()", "!f", "false"),
            ("a() && b()", "!t", "a failed"),
            ("a() == b()", "t!", "b failed"),
            ("a() == a()", "!", "a failed"),
            ("!(a() && b()) || c()", "!tt", "true"),
            ("a() && b()", "!!", "a failed"),
        ] {
            assert_eq!(run(text, answers).0, result, "{text}");
        }
    }
}
