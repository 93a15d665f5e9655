//! Finds the mutants of a Rust file.
//!
//! Mutants are small and likely faults:
//!
//! - a comparison that is reversed or wrong at its boundary, or a forgotten condition,
//! - an omitted statement, or a match arm that is never taken,
//! - a number that is off by one, or an omitted call of `min` or `max`.
//!
//! The following code is not mutated:
//!
//! - tests,
//! - constants: they are computed when the code is compiled, but a mutant is switched on when it runs,
//! - the contents of macros,
//! - statements that only log (`tracing`) or measure (`metrics`),
//! - the fallback value of a number conversion.

use std::ops::Range;

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Attribute, BinOp, Block, Expr, ExprMethodCall, Item, Lit, Pat, ReturnType, Stmt, Type, UnOp,
    Visibility,
};

use crate::mutant::{Form, Mutant, describe_exchange, shorten};

/// The mutants and the `const fn` functions of one file.
#[derive(Debug, Default)]
pub(crate) struct FileMutants {
    /// The mutants of the file, in no particular order.
    pub(crate) mutants: Vec<Mutant>,
    /// The `const fn` functions of the file. If such a function has a mutant, the mutated copy omits its `const`: a
    /// `const fn` cannot check at run time which mutant is active.
    pub(crate) constant: Vec<Constant>,
}

/// A `const fn`, with the position of its `const`.
#[derive(Clone, Debug)]
pub(crate) struct Constant {
    /// The name of the function, with the name of its type in front.
    pub(crate) function: String,
    /// The range of the word `const` in the file, in bytes.
    pub(crate) word: Range<usize>,
}

/// Finds the mutants of one file.
pub(crate) fn find(file: &str, text: &str) -> Result<FileMutants> {
    let parsed = syn::parse_file(text).context(file.to_owned())?;
    let mut finder = Finder {
        file,
        text,
        owner: None,
        function: String::new(),
        found: FileMutants::default(),
    };
    finder.visit_file(&parsed);
    Ok(finder.found)
}

/// Returns the range of the body of the function with this name, without its braces; `None` if the file has no such
/// function.
pub(crate) fn body_of(text: &str, name: &str) -> Option<Range<usize>> {
    let parsed = syn::parse_file(text).ok()?;
    parsed.items.iter().find_map(|item| match item {
        Item::Fn(function) if function.sig.ident == name => Some(inner_range(&function.block)),
        _ => None,
    })
}

/// The body of a function.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    /// The name of the function. The name of a method begins with the name of its type, for example `Held::lost`.
    pub(crate) function: String,
    /// The range of the body without its braces, in bytes.
    pub(crate) range: Range<usize>,
    /// The range of the word `const` in front of the function; `None` if there is none.
    pub(crate) constant: Option<Range<usize>>,
}

/// Returns the bodies of all functions of a file, without those of its tests.
pub(crate) fn bodies_of(text: &str) -> Result<Vec<Body>> {
    let parsed = syn::parse_file(text)?;
    let mut finder = BodyFinder {
        owner: None,
        bodies: Vec::new(),
    };
    finder.visit_file(&parsed);
    Ok(finder.bodies)
}

struct BodyFinder {
    owner: Option<String>,
    bodies: Vec<Body>,
}

impl BodyFinder {
    fn function(&mut self, signature: &syn::Signature, block: &Block) {
        let name = signature.ident.to_string();
        let function = match &self.owner {
            Some(owner) => format!("{owner}::{name}"),
            None => name,
        };
        self.bodies.push(Body {
            function,
            range: inner_range(block),
            constant: signature.constness.map(|word| word.span().byte_range()),
        });
    }
}

impl<'ast> Visit<'ast> for BodyFinder {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let outer_owner = std::mem::replace(&mut self.owner, type_name(&item.self_ty));
        visit::visit_item_impl(self, item);
        self.owner = outer_owner;
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
    }
}

/// The last name in the path of a type; `None` for other types, for example tuples.
fn type_name(self_ty: &Type) -> Option<String> {
    match self_ty {
        Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
        _ => None,
    }
}

fn inner_range(block: &Block) -> Range<usize> {
    let whole_range = block.span().byte_range();
    whole_range.start + 1..whole_range.end - 1
}

struct Finder<'a> {
    file: &'a str,
    text: &'a str,
    owner: Option<String>,
    function: String,
    found: FileMutants,
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        path.is_ident("test")
            || (path.is_ident("cfg")
                && attribute.meta.require_list().is_ok_and(|list| {
                    let text = list.tokens.to_string();
                    // Do not mutate loom models and TLS code, because the judges are built without them.
                    let is_not_built = text.contains("loom") || text.contains("\"tls-rustls\"");
                    text == "test" || text.contains("all (test") || is_not_built
                }))
    })
}

/// Whether a statement is compiled only for tests and simulations.
fn is_for_tests(stmt: &Stmt) -> bool {
    let attributes = match stmt {
        Stmt::Local(local) => &local.attrs,
        Stmt::Expr(Expr::If(branch), _) => &branch.attrs,
        Stmt::Expr(Expr::Block(block), _) => &block.attrs,
        Stmt::Expr(Expr::Call(call), _) => &call.attrs,
        Stmt::Expr(Expr::MethodCall(call), _) => &call.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| {
                let text = list.tokens.to_string();
                text.contains("feature = \"testing\"") && !text.contains("not")
            })
    })
}

/// Whether an `if` does nothing but write log messages.
fn only_traces(branch: &syn::ExprIf) -> bool {
    let has_only_traces = |block: &Block| {
        block.stmts.iter().all(|stmt| match stmt {
            Stmt::Macro(stmt) => {
                let first_segment = stmt.mac.path.segments.first();
                first_segment.is_some_and(|first| first.ident == "tracing")
            }
            _ => false,
        })
    };
    let else_only_traces = match branch
        .else_branch
        .as_ref()
        .map(|(_, branch_body)| &**branch_body)
    {
        None => true,
        Some(Expr::If(branch_body)) => only_traces(branch_body),
        Some(Expr::Block(branch_body)) => has_only_traces(&branch_body.block),
        Some(_) => false,
    };
    has_only_traces(&branch.then_branch) && else_only_traces
}

/// For a call such as `Duration::from_secs(1)`, returns the first and the last name in the path of the function
/// (`Duration`, `from_secs`). Returns `None` for all other expressions.
fn called_function(expr: &Expr) -> Option<(String, String)> {
    match expr {
        Expr::Call(call) => match &*call.func {
            Expr::Path(path) => {
                let mut names = path.path.segments.iter().map(|part| part.ident.to_string());
                let first = names.next()?;
                Some((first.clone(), names.next_back().unwrap_or(first)))
            }
            _ => None,
        },
        _ => None,
    }
}

fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// Whether a condition has parts with mutants of their own, for example the two sides of `&&`. Such a condition is not
/// mutated as a whole.
fn has_parts(expr: &Expr) -> bool {
    match expr {
        Expr::Binary(_) | Expr::Let(_) | Expr::Lit(_) | Expr::Macro(_) => true,
        Expr::Unary(unary) => matches!(unary.op, UnOp::Not(_)),
        Expr::Paren(paren) => has_parts(&paren.expr),
        Expr::MethodCall(call) => returns_bool(call),
        _ => false,
    }
}

fn returns_bool(call: &ExprMethodCall) -> bool {
    let name = call.method.to_string();
    name.starts_with("is_") || name.starts_with("contains") || name == "any" || name == "all"
}

/// Whether this is a number conversion `T::try_from(x).unwrap_or(y)`. `y` is not mutated, because the conversion never
/// fails in practice.
fn converts(call: &ExprMethodCall) -> bool {
    let is_try_from = called_function(&call.receiver).is_some_and(|(_, last)| last == "try_from");
    is_try_from && call.method == "unwrap_or"
}

impl Finder<'_> {
    fn source(&self, range: &Range<usize>) -> &str {
        &self.text[range.clone()]
    }

    fn add(&mut self, range: Range<usize>, change: String, form: Form) {
        let line = self.text[..range.start].matches('\n').count() + 1;
        self.found.mutants.push(Mutant {
            id: 0,
            file: self.file.to_owned(),
            function: self.function.clone(),
            line,
            change,
            nth: 1,
            range,
            form,
        });
    }

    fn replace(&mut self, expr: &Expr, replacement: String) {
        let range = expr.span().byte_range();
        let change = describe_exchange(self.source(&range), &replacement);
        self.add(range, change, Form::Instead(replacement));
    }

    fn text_of(&self, part: &impl Spanned) -> String {
        self.source(&part.span().byte_range()).to_owned()
    }

    fn mutate_condition(&mut self, cond: &Expr) {
        if !has_parts(cond) {
            let range = cond.span().byte_range();
            let change = format!("if {} -> if not", shorten(self.source(&range)));
            self.add(range, change, Form::Not);
        }
    }

    fn without_operand(&mut self, part: &Expr, is_and: bool) {
        if matches!(part, Expr::Let(_)) || (has_let(part)) {
            return;
        }
        let range = part.span().byte_range();
        let (operator, form) = if is_and {
            ("and", Form::Always)
        } else {
            ("or", Form::Never)
        };
        let change = format!("no '{operator} {}'", shorten(self.source(&range)));
        self.add(range, change, form);
    }

    fn body(&mut self, output: &ReturnType, block: &Block) {
        let is_single_expression = match &block.stmts[..] {
            [] => return,
            [Stmt::Expr(..)] => true,
            _ => false,
        };
        let body_start = inner_range(block).start;
        let statements: &[&str] = match output {
            ReturnType::Default if is_single_expression => &[],
            ReturnType::Default => &["return;"],
            ReturnType::Type(_, return_type) => match &**return_type {
                Type::Path(path) => match path.path.segments.last() {
                    Some(last) if last.ident == "bool" => &["return true;", "return false;"],
                    Some(last) if last.ident == "Option" => &["return None;"],
                    _ => &[],
                },
                _ => &[],
            },
        };
        for statement in statements {
            let change = format!("nothing but {}", statement.trim_end_matches(';'));
            self.add(
                body_start..body_start,
                change,
                Form::Only((*statement).to_owned()),
            );
        }
    }

    fn function(
        &mut self,
        attributes: &[Attribute],
        visible: &syn::Visibility,
        signature: &syn::Signature,
        block: &Block,
    ) -> bool {
        let name = signature.ident.to_string();
        // Do not mutate a public `const fn`. It must stay `const`, because users may call it in constants.
        let callable = signature.constness.is_some() && matches!(visible, Visibility::Public(_));
        if is_test(attributes) || callable || name == "fmt" {
            return false;
        }
        self.function = match &self.owner {
            Some(owner) => format!("{owner}::{name}"),
            None => name,
        };
        if let Some(word) = &signature.constness {
            self.found.constant.push(Constant {
                function: self.function.clone(),
                word: word.span().byte_range(),
            });
        }
        self.body(&signature.output, block);
        true
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}

    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}

    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}

    fn visit_pat(&mut self, _: &'ast Pat) {}

    fn visit_type(&mut self, _: &'ast Type) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_expr_repeat(&mut self, _: &'ast syn::ExprRepeat) {}

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if is_test(&item.attrs) {
            return;
        }
        let outer_owner = std::mem::replace(&mut self.owner, type_name(&item.self_ty));
        visit::visit_item_impl(self, item);
        self.owner = outer_owner;
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if self.function(&item.attrs, &item.vis, &item.sig, &item.block) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if self.function(&item.attrs, &item.vis, &item.sig, &item.block) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if !is_for_tests(stmt) {
            visit::visit_stmt(self, stmt);
        }
    }

    fn visit_block(&mut self, block: &'ast Block) {
        for stmt in block.stmts.iter().filter(|stmt| !is_for_tests(stmt)) {
            let Stmt::Expr(expr, semi) = stmt else {
                continue;
            };
            let is_statement = match expr {
                Expr::Call(_) => called_function(expr).is_some_and(|(first, _)| first != "metrics"),
                Expr::Binary(binary) => matches!(
                    binary.op,
                    BinOp::AddAssign(_)
                        | BinOp::SubAssign(_)
                        | BinOp::BitOrAssign(_)
                        | BinOp::BitAndAssign(_)
                ),
                Expr::MethodCall(_)
                | Expr::Assign(_)
                | Expr::Await(_)
                | Expr::Try(_)
                | Expr::Return(_)
                | Expr::Break(_)
                | Expr::Continue(_) => true,
                _ => false,
            };
            if is_statement && semi.is_some() {
                let range = stmt.span().byte_range();
                let change = format!("without {}", shorten(self.source(&range)));
                self.add(range, change, Form::Without);
            }
        }
        visit::visit_block(self, block);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some((_, guard)) = &arm.guard {
            for (form, word) in [(Form::Always, "always"), (Form::Never, "never")] {
                let range = guard.span().byte_range();
                let change = format!("arm if {} -> {word}", shorten(self.source(&range)));
                self.add(range, change, form);
            }
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_match(&mut self, expr: &'ast syn::ExprMatch) {
        let catches_all = |pat: &Pat| match pat {
            Pat::Wild(_) => true,
            // A lower-case name matches any value, so the arm catches all. A name such as `None` matches one constant.
            Pat::Ident(name) => {
                let first_letter = name.ident.to_string().chars().next();
                name.subpat.is_none() && first_letter.is_some_and(char::is_lowercase)
            }
            _ => false,
        };
        if let [earlier_arms @ .., last] = &expr.arms[..]
            && catches_all(&last.pat)
            && last.guard.is_none()
        {
            for arm in earlier_arms.iter().filter(|arm| arm.guard.is_none()) {
                let range = arm.pat.span().byte_range();
                let change = format!("no arm {}", shorten(self.source(&range)));
                self.add(range, change, Form::NoArm);
            }
        }
        visit::visit_expr_match(self, expr);
    }

    fn visit_expr(&mut self, expr: &'ast Expr) {
        match expr {
            Expr::Binary(binary) => self.binary(expr, binary),
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_)) => {
                let replacement = self.text_of(&*unary.expr);
                self.replace(expr, replacement);
            }
            Expr::If(branch) if only_traces(branch) => return,
            Expr::If(branch) => match &*branch.cond {
                Expr::Let(_) => {}
                cond => self.mutate_condition(cond),
            },
            Expr::While(branch) => self.mutate_condition(&branch.cond),
            Expr::Let(matched) => {
                let range = matched.expr.span().byte_range();
                let whole_range = matched.span().byte_range();
                let change = format!("never {}", shorten(self.source(&whole_range)));
                self.add(range, change, Form::NoMatch);
            }
            Expr::Lit(lit) => match &lit.lit {
                Lit::Bool(value) => self.replace(expr, (!value.value).to_string()),
                Lit::Int(_) => {
                    let replacement = format!("({} + 1)", self.text_of(lit));
                    self.replace(expr, replacement);
                }
                Lit::Float(_) => {
                    let replacement = format!("({} * 2.0)", self.text_of(lit));
                    self.replace(expr, replacement);
                }
                _ => {}
            },
            Expr::Macro(body) if body.mac.path.is_ident("matches") => {
                let range = expr.span().byte_range();
                let change = format!("not {}", shorten(self.source(&range)));
                self.add(range, change, Form::Not);
            }
            Expr::Call(_) if called_function(expr).is_some_and(|(first, _)| first == "Some") => {
                self.replace(expr, "None".into());
            }
            Expr::MethodCall(call) if converts(call) => return self.visit_expr(&call.receiver),
            Expr::MethodCall(call) => self.method(expr, call),
            _ => {}
        }
        visit::visit_expr(self, expr);
    }
}

impl Finder<'_> {
    fn binary(&mut self, expr: &Expr, binary: &syn::ExprBinary) {
        let operators: &[&str] = match binary.op {
            BinOp::Eq(_) => &["!="],
            BinOp::Ne(_) => &["=="],
            BinOp::Lt(_) => &["<=", ">="],
            BinOp::Le(_) => &["<", ">"],
            BinOp::Gt(_) => &[">=", "<="],
            BinOp::Ge(_) => &[">", "<"],
            BinOp::Sub(_) => &["+"],
            BinOp::BitOr(_) => &["&"],
            BinOp::BitAnd(_) => &["|"],
            _ => &[],
        };
        let (left, right) = (self.text_of(&*binary.left), self.text_of(&*binary.right));
        for operator in operators {
            self.replace(expr, format!("{left} {operator} {right}"));
        }
        match binary.op {
            BinOp::Add(_) | BinOp::Mul(_) | BinOp::Div(_) => self.replace(expr, left),
            BinOp::And(_) => {
                self.without_operand(&binary.left, true);
                self.without_operand(&binary.right, true);
            }
            BinOp::Or(_) => {
                self.without_operand(&binary.left, false);
                self.without_operand(&binary.right, false);
            }
            _ => {}
        }
    }

    fn method(&mut self, expr: &Expr, call: &ExprMethodCall) {
        let name = call.method.to_string();
        let receiver = self.text_of(&*call.receiver);
        let replacement = match name.as_str() {
            "min" | "max" | "saturating_sub" | "saturating_add" | "rev" | "filter" | "or"
            | "or_else" | "clamp" => Some(receiver),
            "push_back" | "push_front" | "pop_back" | "pop_front" | "first" | "last" => {
                let replacement = match name.as_str() {
                    "push_back" => "push_front",
                    "push_front" => "push_back",
                    "pop_back" => "pop_front",
                    "pop_front" => "pop_back",
                    "first" => "last",
                    _ => "first",
                };
                let args: Vec<String> = call.args.iter().map(|arg| self.text_of(arg)).collect();
                Some(format!("{receiver}.{replacement}({})", args.join(", ")))
            }
            _ => None,
        };
        if let Some(replacement) = replacement {
            self.replace(expr, replacement);
        }
        if returns_bool(call) {
            let range = expr.span().byte_range();
            let change = format!("not {}", shorten(self.source(&range)));
            self.add(range, change, Form::Not);
        }
        let methods_with_predicate = [
            "filter",
            "retain",
            "find",
            "position",
            "skip_while",
            "take_while",
            "is_some_and",
            "is_none_or",
            "any",
            "all",
        ];
        if let (true, Some(Expr::Closure(closure))) = (
            methods_with_predicate.contains(&name.as_str()),
            call.args.first(),
        ) {
            let body = &closure.body;
            if !matches!(**body, Expr::Block(_)) {
                for (form, word) in [(Form::Always, "true"), (Form::Never, "false")] {
                    let range = body.span().byte_range();
                    let change = format!(".{name}({}) -> {word}", shorten(self.source(&range)));
                    self.add(range, change, form);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(text: &str) -> Vec<String> {
        let mutants = find("a.rs", text).expect("the Rust code must parse");
        mutants
            .mutants
            .into_iter()
            .map(|mutant| mutant.change)
            .collect()
    }

    #[test]
    fn rust_mutations_change_conditions_numbers_and_statements_but_not_test_code() {
        let text = "
            const LIMIT: u32 = 3;
            fn decide(a: u32, b: Option<u32>) -> u32 {
                if a < LIMIT && b.is_some() { note(a); }
                if let Some(b) = b { return b.min(7); }
                a
            }
            #[cfg(test)]
            mod tests { fn none() { if 1 < 2 { go(); } } }
        ";
        let mut found_changes = changes(text);
        found_changes.sort();
        assert_eq!(
            found_changes,
            [
                "7 -> (7 + 1)",
                "a < LIMIT -> a <= LIMIT",
                "a < LIMIT -> a >= LIMIT",
                "b.min(7) -> b",
                "never let Some(b) = b",
                "no 'and a < LIMIT'",
                "no 'and b.is_some()'",
                "not b.is_some()",
                "without note(a);",
                "without return b.min(7);",
            ]
        );
    }

    #[test]
    fn mutants_do_not_change_logging_or_number_conversions_or_testing_code() {
        let text = "fn f(a: bool, b: u32) {
            let c = u64::try_from(b).unwrap_or(7);
            if a { tracing::warn!(\"x\"); } else if b < 2 { tracing::debug!(\"y\"); }
            #[cfg(feature = \"testing\")]
            if b > 3 { go(); }
            #[cfg(feature = \"testing\")]
            let b = if a { 0 } else { b };
        }";
        assert_eq!(changes(text), ["nothing but return"]);
    }

    #[test]
    fn each_part_of_an_if_let_condition_is_mutated_separately() {
        let text = "fn f(a: Option<bool>, b: bool) { if let Some(x) = a && b && x { go(); } }";
        let mut found_changes = changes(text);
        found_changes.sort();
        assert_eq!(
            found_changes,
            [
                "never let Some(x) = a",
                "no 'and b'",
                "no 'and x'",
                "without go();",
            ]
        );
    }
}
