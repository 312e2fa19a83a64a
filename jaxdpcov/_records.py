"""Frozen dataclasses that are JAX pytrees and are checked when a person makes them, never when JAX does."""

import dataclasses
from typing import Any, Callable, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=False)
def record(*, static: tuple[str, ...] = ()) -> Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass and a pytree node whose fields are leaves, save the `static` ones.

    `__init__` and `__post_init__` run for people only. JAX rebuilds a node from gradients, tracers and
    sentinels, and a check that raised there would break `grad` and `vmap`.
    """

    def decorate(cls: type[T]) -> type[T]:
        made: Any = dataclasses.dataclass(frozen=True)(cls)
        names = [field.name for field in dataclasses.fields(made)]
        unknown = set(static) - set(names)
        if unknown:
            raise TypeError(f"{cls.__name__} has no field {sorted(unknown)}")
        leaves = [name for name in names if name not in static]

        def flatten_with_keys(node: Any) -> tuple[list[Any], Any]:
            keyed = [(jax.tree_util.GetAttrKey(name), getattr(node, name)) for name in leaves]
            return keyed, tuple(getattr(node, name) for name in static)

        def flatten(node: Any) -> tuple[list[Any], Any]:
            return [getattr(node, name) for name in leaves], tuple(getattr(node, name) for name in static)

        def unflatten(aux: Any, children: Any) -> Any:
            node = object.__new__(made)
            for name, value in zip(leaves, children):
                object.__setattr__(node, name, value)
            for name, value in zip(static, aux):
                object.__setattr__(node, name, value)
            return node

        jax.tree_util.register_pytree_with_keys(made, flatten_with_keys, unflatten, flatten)
        return made

    return decorate
