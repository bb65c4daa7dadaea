package middleware

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// handlerConfigs finds the configuration of a handler by its name in the router. Handlers that are not
// configured get the defaults, made once at their first message.
type handlerConfigs struct {
	configured map[string]*HandlerConfig
	defaults   *sync.Map // handler name -> *HandlerConfig
}

func newHandlerConfigs(handlers map[string]HandlerConfig) handlerConfigs {
	configured := make(map[string]*HandlerConfig, len(handlers))
	for name, config := range handlers {
		config.setDefaults(name)
		configured[name] = &config
	}
	return handlerConfigs{configured: configured, defaults: &sync.Map{}}
}

func (c handlerConfigs) get(handlerName string) *HandlerConfig {
	if config, ok := c.configured[handlerName]; ok {
		return config
	}
	if config, ok := c.defaults.Load(handlerName); ok {
		return config.(*HandlerConfig)
	}
	config := &HandlerConfig{}
	config.setDefaults(handlerName)
	stored, _ := c.defaults.LoadOrStore(handlerName, config)
	return stored.(*HandlerConfig)
}

// checkNames refuses a configuration for a handler that the router does not have: it is a typing mistake,
// and the handler that was meant would run with the defaults. It also refuses a consumer name that is the
// name of another handler, which has it by default.
func (c handlerConfigs) checkNames(routerHandlers map[string]message.HandlerFunc) error {
	for _, name := range slices.Sorted(maps.Keys(c.configured)) {
		if _, ok := routerHandlers[name]; !ok {
			return fmt.Errorf("InboxConfig.Handlers names handler %q, but the router has only %q; correct the name or add the handler before the router runs",
				name, slices.Sorted(maps.Keys(routerHandlers)))
		}
		consumer := c.configured[name].Consumer
		_, isHandler := routerHandlers[consumer]
		if _, isConfigured := c.configured[consumer]; isHandler && !isConfigured {
			return fmt.Errorf("handler %q has the consumer name %q, which handler %q has by default: a message that reaches both would run in only one of them; set Consumer in InboxConfig.Handlers[%q]",
				name, consumer, consumer, consumer)
		}
	}
	return nil
}

func validateHandlers(handlers map[string]HandlerConfig) []error {
	var problems []error
	byConsumer := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(handlers)) {
		config := handlers[name]
		config.setDefaults(name)
		if err := config.validate(); err != nil {
			problems = append(problems, fmt.Errorf("handler %q: %w", name, err))
		}
		if other, ok := byConsumer[config.Consumer]; ok {
			problems = append(problems, fmt.Errorf("handlers %q and %q have one consumer name %q: a message that reaches both would run in only one of them; give each its own",
				other, name, config.Consumer))
		}
		byConsumer[config.Consumer] = name
	}
	return problems
}

// isNil also finds the nil pointer inside an interface, which a failed constructor leaves when its error
// was ignored.
func isNil(value any) bool {
	if value == nil {
		return true
	}
	v := reflect.ValueOf(value)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
